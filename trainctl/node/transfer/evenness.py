"""Streams that advance alike, whatever TCP makes of them on the link that they share. See DESIGN.md, "Peers"."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Iterator, Set

AHEAD_BYTES = 2**20


class Stream:
    """One client's. ``sent`` counts its bytes, from where the others were when it began."""

    def __init__(self) -> None:
        self.sent = 0
        self.at = 0.0


class Evenness:
    """Of the streams under way none gets more than AHEAD_BYTES ahead of the last; one that stands still for so many seconds holds up nobody."""

    def __init__(self, stalled_seconds: float = 3.0) -> None:
        self._stalled_seconds = stalled_seconds
        self._changed = threading.Condition()
        self._streams: Set[Stream] = set()

    @contextmanager
    def under_way(self, stream: Stream) -> Iterator[None]:
        """The stream is being sent something; it goes on where it was, if the others are not further by now."""
        with self._changed:
            self._catch_up(stream)
            self._streams.add(stream)
        try:
            yield
        finally:
            with self._changed:
                self._streams.discard(stream)
                self._changed.notify_all()

    def advance(self, stream: Stream, count: int) -> None:
        """It was sent so many bytes more; returns when it may go on."""
        with self._changed:
            if stream.at < self._lately():
                self._catch_up(stream)
            held_up = stream.sent <= self._last(stream)
            stream.sent += count
            stream.at = time.monotonic()
            if held_up:
                self._changed.notify_all()
            while stream.sent - self._last(stream) > AHEAD_BYTES:
                self._changed.wait(self._stalled_seconds)
            stream.at = time.monotonic()

    def _catch_up(self, stream: Stream) -> None:
        stream.sent = max(stream.sent, self._last(stream))
        stream.at = time.monotonic()

    def _last(self, mine: Stream) -> int:
        """Where the last of the others is that advance; where this one is, if none does."""
        since = self._lately()
        others = (one.sent for one in self._streams if one is not mine and one.at >= since)
        return min(others, default=mine.sent)

    def _lately(self) -> float:
        return time.monotonic() - self._stalled_seconds
