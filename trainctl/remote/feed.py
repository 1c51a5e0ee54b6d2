"""Input that is made while a program runs."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterable, Iterator


class Feed:
    """What is put is sent; closed, it ends. Filled from any thread, read by one.

    Reading waits, and a descriptor (``fileno``) can be read when it would not: so a transport that has one thread waits for both sides at once.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe()
        self._closed = False
        self._ahead: Iterator[bytes] = iter(())
        self._first: bytes | None = None
        self.began: float | None = None
        """When somebody began to read, in monotonic seconds: the program has been started then."""

    def lead(self, pieces: Iterable[bytes]) -> None:
        """Have these sent before all that is put. To be said before anybody reads; they have to be ready."""
        self._ahead = iter(pieces)
        self._first = next(self._ahead, None)
        if self._first is not None:
            os.write(self._writer, b".")

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
        if self._first is not None:
            data, self._first = self._first, next(self._ahead, None)
            if self._first is None:  # from here on there may be nothing to read
                os.read(self._reader, 1)
            return data
        os.read(self._reader, 1)
        item = self._items.get()
        if item is None:
            self.close()
            raise StopIteration
        return item

    def _add(self, data: bytes | None) -> None:
        self._items.put(data)
        os.write(self._writer, b".")

    def __del__(self) -> None:
        os.close(self._reader)
        os.close(self._writer)
