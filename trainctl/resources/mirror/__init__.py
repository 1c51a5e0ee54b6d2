"""Mirrors on hosts, and how nodes read a mirror.

`host_store` is a mirror in a directory of a host; `source_urls` gives that host URLs of a source.
`access` gives a node access to a mirror: a directory, a server (`node_server`) or presigned URLs.
"""
