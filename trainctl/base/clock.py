"""Clocks: Unix time, and elapsed time that includes suspend."""

from __future__ import annotations

import time


def elapsed() -> float:
    """Return monotonic seconds, including time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Clocks of this machine."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def elapsed(self) -> float:
        """Monotonic seconds, including suspend."""
        return elapsed()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class Stopwatch:
    """Seconds since its creation; ``wall`` is the Unix time of that moment."""

    def __init__(self) -> None:
        self.wall = time.time()
        self._began = elapsed()

    @property
    def seconds(self) -> float:
        """Seconds since creation."""
        return elapsed() - self._began

    @property
    def now(self) -> float:
        """Unix time, unaffected by changes of the clock since creation."""
        return self.wall + self.seconds
