"""Waits that are over at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainctl.base.http.limits import LIMITS


def skip_waits() -> None:
    """No server's pause lasts any longer."""
    LIMITS.clear()


def record_waits(waits: list[float]) -> Callable[[threading.Event, float], None]:
    """A wait for Retry that only writes down how long it would be."""

    def wait(cancelled: threading.Event, seconds: float) -> None:
        waits.append(seconds)
        skip_waits()

    return wait
