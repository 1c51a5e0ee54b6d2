"""Queues and claims of a host's GPUs and sweep slots.

- ``allocation``: wait in queues for dependencies, slots and GPUs
- ``claims``: exclusive names held by a process
- ``gpus``: select and claim GPUs, and expose them to the job
- ``rank_coordination``: what a supervisor coordinates with other ranks; a no-op without a gang
"""
