"""A mirror served over HTTP as an operator's process does it, and raw requests to it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tests.support.nodes import Mirror
from trainctl.node.server import BlobServer, MirrorShelf, serving
from trainctl.resources.tokens import new_token


@contextmanager
def served(mirror: Mirror) -> Iterator[BlobServer]:
    """The mirror's server."""
    with serving(BlobServer(MirrorShelf(mirror.path), new_token())) as server:
        yield server


def origin(server: BlobServer, **changes: Any) -> dict[str, Any]:
    """The origin that a request names for it."""
    url = f"http://127.0.0.1:{server.port}"
    return {"type": "http", "url": url, "token": server.token, **changes}


class Server(Protocol):
    """What listens on this machine's loopback."""

    @property
    def port(self) -> int: ...

    token: str


def asked(
    server: Server,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of one request, with the right token unless ``headers`` says otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    found = {"Authorization": f"Bearer {server.token}", **(headers or {})}
    try:
        connection.request(method, path, body, found)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()
