"""When the holder of a lease counts as dead.

A holder renews its lease every ``RENEW_SECONDS``. Others may take it over if the holder's process is known to have
ended, or if they saw no renewal for ``STALE_SECONDS`` by their own clock: clocks of machines are never compared.
"""

from __future__ import annotations

from typing import Callable, Dict, Optional, Tuple

from trainctl.base.clock import elapsed
from trainctl.base.processes import Process, is_dead, process

RENEW_SECONDS = 5.0
STALE_SECONDS = 30.0


def holder_name() -> str:
    """The name of this process as a holder of leases; safe as part of a file name or key."""
    me = process()
    return f"{me.machine}.{me.boot}-{me.pid}-{me.started}"


def known_dead(holder: str) -> bool:
    """Whether the process of that name has certainly ended."""
    return _is_dead(holder) is True


def known_alive(holder: str) -> bool:
    """Whether the process of that name certainly runs."""
    return _is_dead(holder) is False


def _is_dead(holder: str) -> Optional[bool]:
    try:
        place, pid, started = holder.split("-")
        machine, boot = place.split(".", 1)
        return is_dead(Process(machine, boot, int(pid), int(started)))
    except ValueError:
        return None


class Liveness:
    """Detects holders that show no sign of life, by this process's own clock."""

    def __init__(
        self, clock: Callable[[], float] = elapsed, stale_seconds: float = STALE_SECONDS
    ) -> None:
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._seen: Dict[str, Tuple[object, float]] = {}

    def is_stale(self, key: str, sign: object, read_at: Optional[float] = None) -> bool:
        """Whether the holder of ``key`` has shown this same sign of life for ``stale_seconds``.

        ``sign`` is any value that each renewal changes. Where reading it takes long, ``read_at`` is when that began.
        """
        now = self._clock()
        if key not in self._seen or self._seen[key][0] != sign:
            self._seen[key] = sign, now
            return False
        return (now if read_at is None else read_at) - self._seen[key][1] >= self._stale_seconds
