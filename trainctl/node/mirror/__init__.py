"""A mirror in a directory of this host."""
