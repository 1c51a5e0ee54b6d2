"""Operations of the commands: return values, emit events, print nothing.

Every operation works on a `workspace.Workspace`: manifest, state, mirror, secrets and nodes,
each opened on first use. Begin with `plan.create_plan` and `apply.apply`.
`survey` gathers the facts of a plan; `reconcile` resumes approved work; `runs` has operations
on runs; `nodes`, `caches`, `secrets`, `states` and `mirrors` those on nodes, caches, secrets,
states and the location of the mirror. `trust` and `policies` say what a plan may do.
"""
