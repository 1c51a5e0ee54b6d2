"""Adapters of ``base.objects.ObjectStore``: directory and memory.

``memory`` is the shortest and serves as the reference; ``directory`` is used by mirrors on disks and hosts. The adapter
of buckets is ``trainctl.buckets.bucket``. ``tests/conformance`` runs one suite over all.
"""
