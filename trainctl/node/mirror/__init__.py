"""RPC methods on a mirror in a directory, and reading sources by URL."""
