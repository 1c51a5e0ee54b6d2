"""The two clocks of leases: one for people, one for waiting."""

from __future__ import annotations

import time
from typing import Protocol

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: MONOTONIC counts sleep


class Clock(Protocol):
    """What time it is."""

    def now(self) -> float:
        """Unix seconds. For people: it may jump, and is never compared."""
        ...

    def elapsed(self) -> float:
        """Seconds since some fixed moment, sleep of the machine included; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds since the machine started, sleep included."""
        return time.clock_gettime(_ELAPSED)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


_: type[Clock] = SystemClock
