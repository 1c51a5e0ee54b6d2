"""Queues and claims of a host's GPUs and sweep slots.

- ``allocation``: wait in queues for dependencies, slots and GPUs; expose GPUs to the job
- ``claims``: exclusive names held by a process
- ``rank_coordination``: what a supervisor coordinates with other ranks; a no-op without a gang
"""
