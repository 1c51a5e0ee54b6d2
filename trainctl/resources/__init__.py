"""Create, read, update and delete each kind of resource.

`registry.handlers` returns the handler of each kind: `clusters`, `weights`, `caches`, `jobs`.
Begin with `jobs.JobHandler`: it runs `deployment`, which places the ranks (`placement`),
delivers weights (`delivery`), and starts the supervisors (`launch`).
`agents` holds the connections to nodes; `run_control` queries and stops runs that exist;
`checkpoints` reads their checkpoints; `previous_runs` finds and repeats earlier runs.
`mirror` has mirrors on hosts, and how nodes read a mirror.
"""
