"""A mirror served over HTTP as an operator's process does it, and raw requests to it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from secrets import token_urlsafe
from typing import Any, Protocol

from tests.support.node_program.nodes import MirrorFixture
from trainctl.base.network.object_server import ObjectServer, serve_in_thread
from trainctl.base.network.tls import server_context
from trainctl.resources.mirror_access import Certificate
from trainctl.store.mirror_objects import MirrorObjectSource


@contextmanager
def serve_mirror(
    mirror: MirrorFixture, certificate: Certificate | None = None
) -> Iterator[ObjectServer]:
    """The mirror's server, which shows that certificate, or speaks plain HTTP."""
    tls = server_context(asdict(certificate)) if certificate else None
    content = MirrorObjectSource(mirror.path)
    with serve_in_thread(
        ObjectServer(content, token_urlsafe(32), tls=tls, private=lambda _: tls is None)
    ) as server:
        yield server


def mirror_location(
    server: ObjectServer, certificate: Certificate | None = None, **changes: Any
) -> dict[str, Any]:
    """The mirror that a request names for it."""
    return {**server_address(server, certificate), **changes}


def server_address(
    server: LoopbackServer, certificate: Certificate | None = None
) -> dict[str, Any]:
    """How clients are told of what listens on this machine's loopback."""
    if certificate is None:
        return {"urls": [f"http://127.0.0.1:{server.port}"], "token": server.token}
    urls = [f"https://127.0.0.1:{server.port}"]
    return {"urls": urls, "token": server.token, "fingerprint": certificate.fingerprint}


class LoopbackServer(Protocol):
    """What listens on this machine's loopback."""

    @property
    def port(self) -> int: ...

    token: str


def send_request(
    server: LoopbackServer,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of one request, with the right token unless ``headers`` says otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    result = {"Authorization": f"Bearer {server.token}", **(headers or {})}
    try:
        connection.request(method, path, body, result)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()
