"""Bytes on their way: where each part is asked for, by how many streams, and how a host serves blobs."""
