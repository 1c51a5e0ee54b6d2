"""Byte rates: limit one, and detect peers that send almost nothing."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

MIN_BYTES = 16 * 2**10
"""Bytes that must arrive in a window; a line of 5 kbit/s manages that in the default 30 seconds."""


class RateLimiter:
    """A limit in bytes a second, shared by threads; none without ``rate``."""

    def __init__(
        self,
        rate: Optional[float] = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def acquire(self, count: int) -> None:
        """Wait until ``count`` bytes may be sent."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._rate
        if begin > now:
            self._sleep(begin - now)


class StalledError(TimeoutError):
    """Almost nothing arrived in a whole window."""


class ThroughputMonitor:
    """Compares bytes with the time spent waiting for them; ``window`` is in seconds.

    It detects slow peers, which each byte saves from a read timeout.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self.require_progress()

    def require_complete(self) -> None:
        """Until ``require_progress``, require that everything arrives within one window."""
        self._reset(float("inf"))

    def require_progress(self) -> None:
        """Start a window in which only ``MIN_BYTES`` must arrive."""
        self._reset(MIN_BYTES)

    def _reset(self, min_bytes: float) -> None:
        self._min_bytes = min_bytes
        self._waited = 0.0
        self._arrived = 0

    def record(self, size: int, seconds: float) -> None:
        """Record bytes and the wait for them; StalledError if too slow."""
        self._arrived += size
        self._waited += seconds
        if self._waited < self._window:
            return
        if self._arrived < self._min_bytes:
            raise StalledError(f"{self._arrived} bytes in {self._waited:.0f} s")
        self._waited, self._arrived = 0.0, 0
