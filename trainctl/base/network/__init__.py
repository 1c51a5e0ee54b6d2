"""Addresses, listeners, TLS and the object server of a host.

``object_server`` serves objects by key over HTTP. It listens on the host's ``addresses``, with the certificates of
``tls``. The HTTP client is ``base.http``.
"""
