"""Detect peers that send almost nothing. Silence alone is found by timeouts, which each byte starts again."""

from __future__ import annotations

LEAST_BYTES = 16 * 2**10
"""What must arrive in a window. A line of 5 kbit/s brings it within the usual 30 seconds."""


class TooSlow(TimeoutError):
    """Hardly anything came for a whole window."""


class Flow:
    """Bytes by the time that was spent waiting for them; what is done with them takes as long as it likes. ``window`` is in seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._least: float = LEAST_BYTES
        self._waited = 0.0
        self._arrived = 0

    def need_all(self) -> None:
        """Until ``need_some``: what comes must be complete within one window, however much it is."""
        self._least = float("inf")
        self._waited, self._arrived = 0.0, 0

    def need_some(self) -> None:
        """A new window, in which only so much must arrive."""
        self._least = LEAST_BYTES
        self._waited, self._arrived = 0.0, 0

    def came(self, size: int, seconds: float) -> None:
        """So many bytes were waited for so long. TooSlow where a window is over in which fewer came than must."""
        self._arrived += size
        self._waited += seconds
        if self._waited < self._window:
            return
        if self._arrived < self._least:
            raise TooSlow(f"{self._arrived} bytes in {self._waited:.0f} s")
        self._waited, self._arrived = 0.0, 0
