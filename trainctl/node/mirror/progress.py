"""Progress for a caller on another machine: a few events a second, however many files there are."""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping

_EVERY_SECONDS = 0.1


def throttled(
    emit: Callable[[Mapping[str, Any]], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int, int], None]:
    """A ``Progress`` that sends its first and its last call at once, and others ten times a second."""
    due = clock()

    def progress(done: int, total: int, files: int) -> None:
        nonlocal due
        now = clock()
        if now >= due or done >= total:
            due = now + _EVERY_SECONDS
            emit({"done": done, "total": total, "files": files})

    return progress
