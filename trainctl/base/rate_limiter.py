"""A limit in bytes a second that many threads share."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional


class RateLimiter:
    """Limits a rate by a budget that grows with time; without a rate it never waits. ``clock`` returns seconds."""

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
        """Wait until so many bytes may be sent."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._rate
        if begin > now:
            self._sleep(begin - now)
