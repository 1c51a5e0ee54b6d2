"""Buckets of S3, R2, Google Cloud Storage and Azure. See DESIGN.md beside this file."""
