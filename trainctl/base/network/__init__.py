"""Addresses, ports, listening and TLS: what every program that serves or is served on a host shares.

``object_server`` is the HTTP server of objects by key; it listens by ``listener`` at the ``addresses`` of this host,
at ``ports`` that are free and allowed, with the certificates of ``tls``. The HTTP client is ``base.http``.
"""
