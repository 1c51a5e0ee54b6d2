"""A mirror in a directory of this host: ``methods`` holds its RPC methods, ``url_upstream`` reads sources by URL."""
