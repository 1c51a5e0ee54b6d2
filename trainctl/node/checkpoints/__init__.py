"""Checkpoints: watched, uploaded, kept, loaded."""
