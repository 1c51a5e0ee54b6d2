"""A proxy that cuts connections or changes bytes: the network between two programs on a bad day."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_BLOCK = 65536


class FaultyProxy:
    """Passes bytes on. Of the next ``cuts`` connections each dies after ``after`` bytes either way; while ``gone`` none is taken.

    Responses have ``wrong`` in the place of ``right``, which are equally long.
    """

    def __init__(self, endpoint: str, right: bytes = b"", wrong: bytes = b"") -> None:
        parts = urlsplit(endpoint)
        self._upstream = (str(parts.hostname), int(parts.port or 80))
        self._right, self._wrong = right, wrong
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self.endpoint = f"http://127.0.0.1:{self.port}{parts.path}"
        self.cuts = 0
        self.after = 0
        self.gone = False
        self.taken = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        self.cut()

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
        with client, suppress(OSError):
            if gone:
                return
            with socket.create_connection(self._upstream) as upstream:
                self._ends += client, upstream
                held = b""
                while True:
                    ready, _, _ = select.select([client, upstream], [], [])
                    for source in ready:
                        data = source.recv(_BLOCK)
                        if source is client:
                            upstream.sendall(data[:left])
                        else:
                            passed, held = self._changed(held + data, is_end=not data)
                            client.sendall(passed[:left])
                        left -= len(data)
                        if not data or left <= 0:
                            return

    def _changed(self, data: bytes, *, is_end: bool) -> tuple[bytes, bytes]:
        """What may be the beginning of what is right waits for the rest of it."""
        if not self._right:
            return data, b""
        data = data.replace(self._right, self._wrong)
        lengths = () if is_end else range(len(self._right) - 1, 0, -1)
        waits = next((n for n in lengths if data.endswith(self._right[:n])), 0)
        return data[: len(data) - waits], data[len(data) - waits :]


@contextmanager
def proxy(endpoint: str, right: bytes = b"", wrong: bytes = b"") -> Iterator[FaultyProxy]:
    opened = FaultyProxy(endpoint, right, wrong)
    try:
        yield opened
    finally:
        opened.close()
