"""Adapters of ``base.objects.ObjectStore``: files below a directory, and this process's memory.

``memory`` is the shortest one and the reference for what an object store means; ``directory`` is what mirrors on disks
and hosts use. The adapter of buckets is ``trainctl.objects.bucket_store``. ``tests/conformance`` runs one suite over all.
"""
