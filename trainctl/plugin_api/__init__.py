"""Interfaces of plugins: all that a plugin implements and may import."""
