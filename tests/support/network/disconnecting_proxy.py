"""A proxy that cuts connections: the network between a node and its store on a bad day."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_BLOCK = 65536


class DisconnectingProxy:
    """Passes bytes on. Of the next ``cuts`` connections each dies after ``after`` bytes either way; while ``gone`` none is taken."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._upstream = (str(parts.hostname), int(parts.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts = 0
        self.after = 0
        self.gone = False
        self.taken = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """What clients call."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.taken += 1
                left = self.after if self.cuts else 1 << 60
                self.cuts = max(0, self.cuts - 1)
                threading.Thread(
                    target=self._serve_one, args=(client, left, self.gone), daemon=True
                ).start()

    def _serve_one(self, client: socket.socket, left: int, gone: bool) -> None:
        """Until either side ends, or the bytes that this connection may live for are through."""
        with client:
            if gone:
                return
            with socket.create_connection(self._upstream) as upstream:
                while True:
                    ready, _, _ = select.select([client, upstream], [], [])
                    for source in ready:
                        try:
                            data = source.recv(_BLOCK)
                            (upstream if source is client else client).sendall(data[:left])
                        except OSError:
                            return
                        left -= len(data)
                        if not data or left <= 0:
                            return


@contextmanager
def proxy(endpoint: str) -> Iterator[DisconnectingProxy]:
    """A proxy before a server."""
    made = DisconnectingProxy(endpoint)
    try:
        yield made
    finally:
        made.close()
