"""Time that nobody sets and that counts while the machine sleeps."""

from __future__ import annotations

import time


class Stopwatch:
    """Counts from when it was made; ``wall`` is the Unix time of that moment."""

    def __init__(self) -> None:
        self.wall = time.time()
        self._began = _seconds()

    @property
    def seconds(self) -> float:
        """How long ago it was made."""
        return _seconds() - self._began

    @property
    def now(self) -> float:
        """The Unix time, as if nobody had set the clock since."""
        return self.wall + self.seconds


def _seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
