"""Detect peers that send almost nothing. Silence alone is found by timeouts, which each byte starts again."""

from __future__ import annotations

MIN_BYTES = 16 * 2**10
"""What must arrive in a window. A line of 5 kbit/s brings it within the usual 30 seconds."""


class StalledError(TimeoutError):
    """Hardly anything came for a whole window."""


class ThroughputMonitor:
    """Bytes by the time that was spent waiting for them; what is done with them takes as long as it likes. ``window`` is in seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._least: float = MIN_BYTES
        self._waited = 0.0
        self._arrived = 0

    def require_complete(self) -> None:
        """Until ``require_progress``: what comes must be complete within one window, however much it is."""
        self._least = float("inf")
        self._waited, self._arrived = 0.0, 0

    def require_progress(self) -> None:
        """A new window, in which only so much must arrive."""
        self._least = MIN_BYTES
        self._waited, self._arrived = 0.0, 0

    def record(self, size: int, seconds: float) -> None:
        """So many bytes were waited for so long. StalledError where a window is over in which fewer came than must."""
        self._arrived += size
        self._waited += seconds
        if self._waited < self._window:
            return
        if self._arrived < self._least:
            raise StalledError(f"{self._arrived} bytes in {self._waited:.0f} s")
        self._waited, self._arrived = 0.0, 0
