"""Content by sha256 over one object store: what a mirror is, whether in a directory, on a host or in a bucket.

Begin with ``store.Store``, the operations of a mirror, and ``keys``, the layout. ``ingestion`` copies a source in, ``reader``
finds and reads blobs, ``references`` say who needs them, ``maintenance`` verifies and collects garbage. ``backends`` are
adapters of ``base.objects.ObjectStore``; the bucket's is ``objects.bucket_store``. Python 3.8, standard library only: the same
code runs on hosts.
"""
