"""Coordination of a gang's ranks: join, allocate, start, fail and retry together.

- ``member``: a rank's side, used by its supervisor, and its allocation of GPUs
- ``link``: the helper process that is in touch with rank 0 while the supervisor is busy
- ``exchange``: states for orders over HTTP; rank 0 has the server
- ``coordinator`` decides, without I/O; ``worker_failures`` judges how a rank failed
"""
