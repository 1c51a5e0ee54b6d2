"""Create, read, update and delete each kind of resource.

`handlers.handlers` returns the handler of each kind: `clusters`, `weights`, `caches`, `jobs`.
Begin with `jobs.JobHandler`: it runs `deployment`, which places the ranks (`placement`),
delivers weights (`delivery`), and starts the supervisors (`runs.launch`).
`agents` holds the connections to nodes; `runs` queries, stops and repeats runs that exist;
`checkpoints` reads their checkpoints.
`host_mirror` is a mirror in a directory of a host; `mirror_access` is how nodes read a mirror.
"""
