"""Input that is made while a program runs."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator


class Feed:
    """What is put is sent; closed, it ends. Filled from any thread, read by one.

    Reading waits, and a descriptor (``fileno``) can be read when it would not: so a transport that has one thread waits for both sides at once.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe()
        self._closed = False
        self.began: float | None = None
        """When somebody began to read, in monotonic seconds: the program has been started then."""

    def put(self, data: bytes) -> None:
        """Have it sent; nothing happens when nobody reads any more."""
        if data:
            self._add(data)

    def close(self) -> None:
        """There is no more. May be repeated."""
        if not self._closed:
            self._closed = True
            self._add(None)

    def fileno(self) -> int:
        """Can be read when there is something, or the end."""
        return self._reader

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.began = self.began or time.monotonic()
        os.read(self._reader, 1)
        data = self._items.get()
        if data is None:
            self.close()
            raise StopIteration
        return data

    def _add(self, data: bytes | None) -> None:
        self._items.put(data)
        os.write(self._writer, b".")

    def __del__(self) -> None:
        os.close(self._reader)
        os.close(self._writer)
