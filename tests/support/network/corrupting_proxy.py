"""A proxy behind which bytes turn into others of the same length: bad memory in something on the way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_BLOCK = 2**16


@contextmanager
def corrupting_proxy(endpoint: str, right: bytes, wrong: bytes) -> Iterator[str]:
    """The endpoint, for as long as the block lasts. What is right is asked for and sent on as it is, and answered wrong."""
    assert len(right) == len(wrong)
    parts = urlsplit(endpoint)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=both_ways, args=(client,), daemon=True).start()

    def both_ways(client: socket.socket) -> None:
        with client, socket.create_connection((parts.hostname, parts.port)) as server:
            callbacks = threading.Thread(
                target=_pass_on, args=(client, server, b"", b""), daemon=True
            )
            callbacks.start()
            _pass_on(server, client, right, wrong)
            callbacks.join()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{parts.path}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _pass_on(source: socket.socket, target: socket.socket, right: bytes, wrong: bytes) -> None:
    """What may be the beginning of what is right waits for the rest of it."""
    kept = b""
    with suppress(OSError):
        while data := source.recv(_BLOCK):
            kept += data
            if right:
                kept = kept.replace(right, wrong)
            length = next((n for n in range(len(right) - 1, 0, -1) if kept.endswith(right[:n])), 0)
            target.sendall(kept[: len(kept) - length])
            kept = kept[len(kept) - length :]
        target.sendall(kept)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
