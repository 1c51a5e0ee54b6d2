"""Basics of the node program: paths, blobs, GPUs, facts about the host, process trees."""
