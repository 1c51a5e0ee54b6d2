"""Fetch the blobs of a delivery from mirror, shared cache and peers.

- ``fetch``: one delivery, batch by batch, from the sources that its request names
- ``fetch_pool``: chunks and small files, the units of all transfers, and a thread per fetcher
- ``object_readers``, ``http_reader``: read objects from directories, servers and buckets
- ``peers``: which node to ask for which unit; ``shared_cache``: a directory of the cluster
"""
