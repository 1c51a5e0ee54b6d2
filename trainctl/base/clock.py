"""Clocks: Unix time for people, and elapsed time that counts while the machine sleeps."""

from __future__ import annotations

import time

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: MONOTONIC counts sleep


def elapsed() -> float:
    """Seconds since some fixed moment, sleep of the machine included; never goes back."""
    return time.clock_gettime(_ELAPSED)


class Clock:
    """The clocks of this machine."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds, sleep of the machine included."""
        return elapsed()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Stopwatch:
    """Seconds since it was made; ``wall`` is the Unix time of that moment."""

    def __init__(self) -> None:
        self.wall = time.time()
        self._began = elapsed()

    @property
    def seconds(self) -> float:
        """How long ago it was made."""
        return elapsed() - self._began

    @property
    def now(self) -> float:
        """The Unix time, unaffected by changes of the clock since."""
        return self.wall + self.seconds
