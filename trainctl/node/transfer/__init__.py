"""Fetch the blobs of a delivery from mirror, shared cache and peers.

- ``fetch``: one delivery, batch by batch; ``fetch_pool`` runs a thread per fetcher
- ``transfer_sources``: the sources that a request names
- ``object_readers``, ``http_reader``: read objects from directories, servers and buckets
- ``peers``: which node to ask for which unit; ``shared_cache``: a directory of the cluster
- ``transfer_units``: chunks and small files, the units of all transfers
"""
