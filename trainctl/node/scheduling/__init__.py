"""Waiting for one's turn and for GPUs, and claiming them."""
