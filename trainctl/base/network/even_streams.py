"""Streams of a server that advance evenly, however TCP divides the link between them."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Iterator, Set

AHEAD_BYTES = 2**20
_STALLED_SECONDS = 3.0


class EvenStream:
    """What one client has been sent: ``sent`` bytes, the last of them at the monotonic time ``at``."""

    def __init__(self) -> None:
        self.sent = 0
        self.at = 0.0


class EvenStreams:
    """No stream gets more than AHEAD_BYTES ahead of the slowest that has not stalled."""

    def __init__(self, stalled_seconds: float = _STALLED_SECONDS) -> None:
        self._stalled_seconds = stalled_seconds
        self._changed = threading.Condition()
        self._active: Set[EvenStream] = set()

    @contextlib.contextmanager
    def sending(self, stream: EvenStream) -> Iterator[None]:
        """Include the stream, which continues at its position or at that of the slowest."""
        with self._changed:
            stream.sent, stream.at = max(stream.sent, self._slowest(stream)), time.monotonic()
            self._active.add(stream)
        try:
            yield
        finally:
            with self._changed:
                self._active.discard(stream)
                self._changed.notify_all()

    def advance(self, stream: EvenStream, count: int) -> None:
        """Count bytes that were sent; return when the stream may continue."""
        with self._changed:
            if stream.at < time.monotonic() - self._stalled_seconds:
                stream.sent = max(stream.sent, self._slowest(stream))
            stream.sent += count
            stream.at = time.monotonic()
            self._changed.notify_all()
            while stream.sent - self._slowest(stream) > AHEAD_BYTES:
                self._changed.wait(self._stalled_seconds)
            stream.at = time.monotonic()

    def _slowest(self, stream: EvenStream) -> int:
        """Position of the slowest other stream; this stream's without any."""
        since = time.monotonic() - self._stalled_seconds
        others = (other.sent for other in self._active if other is not stream and other.at >= since)
        return min(others, default=stream.sent)
