"""Checkpoints where they are kept: manifests, stores, and which checkpoint is the newest. The same for nodes and operators."""
