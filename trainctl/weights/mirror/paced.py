"""Progress for who is far away: a few words a second, however many files come."""

from __future__ import annotations

import time
from typing import Callable

from trainctl.weights.mirror.fetch import Progress

_EVERY_SECONDS = 0.1


class Paced:
    """Tells at once how it begins and ends, and in between ten times a second."""

    def __init__(self, tell: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._due = clock()

    def __call__(self, done: int, total: int, files: int) -> None:
        """See Progress."""
        now = self._clock()
        if now >= self._due or done >= total:
            self._due = now + _EVERY_SECONDS
            self._tell(done, total, files)
