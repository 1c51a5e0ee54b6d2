"""Training caches: read-write directories shared by runs.

``cache`` is one cache, ``preparation`` runs the commands that fill it, ``methods`` are the RPC methods.
"""
