"""Weights and code on a node's disk.

- ``delivery``: make a listing present (entry point of the ``deliver`` method)
- ``listings``: which lineages refer to a listing; its files as a tree of hard links to blobs
- ``holds``: what runs and deliveries hold against eviction
- ``eviction``, ``disk_space``, ``verification``: list and remove, measure and free, check
- ``server``: serve blobs to other nodes
- ``code_archives``: source code of jobs as tar files
"""
