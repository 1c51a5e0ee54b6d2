"""What one server is asked by this process as a whole: so much at a time, and nothing while it wants to be left alone.

Servers count requests by address or account. Who asks on because only another was refused spends what all are waiting for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult

from trainctl.base.retry import LONGEST_PAUSE
from trainctl.errors import SourceResting

MOST_AT_ONCE = 32
"""Requests under way, bodies included: as many as one source has at most, so that ten of them have no more."""
_UNTOLD_PAUSE = 1.0
_NEWS = 1.0


class Gate:
    """What every request to a server passes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = MOST_AT_ONCE
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()
        self._clock = clock
        self._not_before = 0.0

    @property
    def crowd(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    @contextmanager
    def passed(self, what: str, host: str) -> Iterator[None]:
        """Wait for room, and have it for the block. SourceResting, and no request is to be made, during a pause."""
        self._refuse(what, host)
        self._enter()
        try:
            self._refuse(what, host)
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        """Whoever came first is first, which a Semaphore doesn't say: else a listing may wait until all files of another source are here."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        is_mine = False
        try:
            is_mine = turn.acquire()
        finally:
            if not is_mine:
                self._give_up(turn)

    def _give_up(self, turn: threading.Lock) -> None:
        """Who waited was interrupted, perhaps when the turn was theirs already."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        self._leave()

    def _leave(self) -> None:
        """Hand the room on."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def _refuse(self, what: str, host: str) -> None:
        left = self._not_before - self._clock()
        if left > 0:
            raise SourceResting(f"{what}: {host} asked for a pause", retry_after=left)

    def pause(self, seconds: float | None) -> bool:
        """The server asked for a pause of so many seconds, or didn't say how long. Whether that is news.

        A pause that nobody would wait for is none: who was told so fails, and others may be told otherwise.
        """
        asked = _UNTOLD_PAUSE if seconds is None else seconds
        if asked > LONGEST_PAUSE:
            return True
        now = self._clock()
        until = now + asked
        with self._lock:
            news = until > self._not_before + _NEWS or now >= self._not_before
            self._not_before = max(self._not_before, until)
        return news


GATES: dict[tuple[str, str, int], Gate] = {}
"""By scheme, host and port."""
_PORTS = {"http": 80, "https": 443}


def gate_of(parts: SplitResult) -> Gate:
    """The gate of a URL's server."""
    origin = (parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0))
    return GATES.get(origin) or GATES.setdefault(origin, Gate())
