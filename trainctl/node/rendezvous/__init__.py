"""Coordination of a gang's ranks: join, allocate, start, fail and retry together.

- ``member``: a rank's side, used by its supervisor
- ``coordinator``: rank 0's helper process; ``coordinator_state`` decides, without I/O
- ``coordinator_connection``: the helper process of every other rank
- ``channel``: authenticated and reliable messages
- ``gang_allocation``: claim GPUs on all nodes at once
"""
