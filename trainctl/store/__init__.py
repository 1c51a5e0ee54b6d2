"""Content-addressed store of mirrors, over any object store.

Begin with ``store.MirrorStore``, the operations of a mirror, and ``keys``, the layout. ``ingestion`` mirrors a source,
``reader`` locates blobs, ``references`` records which resources need a listing, ``maintenance`` surveys, verifies and
collects garbage. ``backends`` are adapters of ``base.objects.ObjectStore``; that of buckets is ``buckets.bucket.BucketObjects``.

It also runs on hosts: Python 3.8 and the standard library only.
"""
