"""Content-addressed store of mirrors, over any object store.

Begin with ``store.MirrorStore``, the operations of a mirror, and ``keys``, the layout.

- ``ingest``: mirror a source. ``coverage`` finds what is stored, ``file_transfer`` fetches, ``writers`` store
- ``reader``: locate blobs; ``mirror_objects``: serve them
- ``references``: which resources need a listing; ``lease``: writers, or a process that deletes
- ``survey``, ``verify``, ``gc``: operations on a whole store
- ``objects``: directories and memory as ``base.objects.ObjectStore``. Buckets: ``buckets.bucket.BucketObjects``

It also runs on hosts: Python 3.8 and the standard library only.
"""
