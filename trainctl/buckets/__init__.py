"""Buckets of S3, R2, Google Cloud Storage and Azure.

Begin with ``bucket_client.Bucket``, the operations of one bucket, and ``bucket_store``, its ``ObjectStore`` with retries.
``location`` parses URLs and endpoints, ``credentials`` parses secrets, ``default_chain`` finds a platform's default
credential (``aws``, ``google``, ``token_requests``). ``obstore_client`` opens clients; ``errors`` translates their errors.
DESIGN.md explains the rules.
"""
