"""How fast bytes move, and how long the rest will take."""

from __future__ import annotations

from collections import deque

from trainctl.base.units import format_bytes, format_duration

_WINDOW = 5.0
"""Seconds over which the rate is taken: long enough to be steady, short enough to show a stall."""
_LEAST = 0.5
"""Seconds that a rate needs at least: of two looks right after each other it would be of the looks."""

_LEAST_BYTES = 4096
"""A rate of less than so many would be of what is left over, and forecast weeks."""


class Meter:
    """Progress of one step. Times are seconds of one monotonic clock; ``total`` is 0 where it is not known."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, done: int, total: int, now: float) -> None:
        """What is done by now; a count that goes back (a chunk that must be fetched again) starts the rate anew."""
        if done < self.done:
            self._seen.clear()
        self.done, self.total = done, total
        self._seen.append((now, done))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Bytes a second over the last seconds; 0 while too little is known or nothing moves."""
        self._forget(now)
        if not self._seen:
            return 0.0
        began, first = self._seen[0]
        seconds = now - began
        moved = self.done - first
        return moved / seconds if seconds >= _LEAST and moved >= _LEAST_BYTES else 0.0

    def text(self, now: float) -> str:
        """``512 MB of 1.5 GB, 110 MB/s, 9.1 s left``."""
        parts = [format_bytes(self.done)]
        if self.total:
            parts[0] += f" of {format_bytes(self.total)}"
        rate = self.rate(now)
        if rate > 0:
            parts.append(f"{format_bytes(rate)}/s")
            if self.total > self.done:
                parts.append(f"{format_duration((self.total - self.done) / rate)} left")
        return ", ".join(parts)

    def _forget(self, now: float) -> None:
        # One sample older than the window stays: it is where the window begins.
        while len(self._seen) > 1 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()
