"""Checkpoint stores, used by nodes and by the client.

``stores`` defines the interface and opens a store: a directory, or ``s3``. ``manifests`` reads and writes the complete
checkpoints of a run; ``layout`` recognises checkpoints by their paths, finds the newest and applies retention.
"""
