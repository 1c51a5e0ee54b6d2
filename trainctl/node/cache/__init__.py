"""Weights and code on a node's disk.

- ``delivery``: make a listing present (entry point of the ``deliver`` method)
- ``listings``, ``leases``: which lineages refer to a listing, which runs use it
- ``trees``: the files of a listing as hard links to blobs
- ``inventory``, ``disk_space``, ``eviction``, ``verification``: measure, free, remove, check
- ``server``: serve blobs to other nodes
- ``code_archives``: source code of jobs as tar files
"""
