"""Paths, blobs, GPUs, facts about the host, process trees."""
