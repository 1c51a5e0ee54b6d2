"""Buckets of S3, R2, Google Cloud Storage and Azure.

Begin with ``bucket.Bucket``, the operations of one bucket, and its ``ObjectStore`` with retries, ``BucketObjects``.
``location`` parses URLs and endpoints, ``credentials`` parses secrets, ``default_chain`` finds a platform's default
credential, which ``logins`` requests. ``obstore_client`` opens clients and translates their errors; ``metadata`` lists.
DESIGN.md explains the rules.
"""
