"""A limit in bytes a second that many threads share."""

from __future__ import annotations

import threading
import time
from typing import Optional


class Pace:
    """Spends a budget that grows with time; without a rate nobody waits."""

    def __init__(self, rate: Optional[float] = None) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def spend(self, count: int) -> None:
        """Wait until so many bytes may be sent."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._rate
        if begin > now:
            time.sleep(begin - now)
