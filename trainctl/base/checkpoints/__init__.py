"""Checkpoint stores, used by nodes and by the client.

``stores`` defines the interface and opens a store: ``directory_store`` or ``s3_store`` (on ``s3_client``).
``manifests`` reads and writes the complete checkpoints of a run; ``ranking`` finds the newest and applies retention.
"""
