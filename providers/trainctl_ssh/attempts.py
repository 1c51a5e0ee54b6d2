"""Connecting once for all who need a connection at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from trainctl.errors import NodeUnreachable


class Attempts:
    """One attempt at a time, under ``lock``. Whoever waited while one failed gets its error, and doesn't try once more."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._failed_at = 0.0
        self._why: NodeUnreachable | None = None

    def ensure(self, is_open: Callable[[], bool], connect: Callable[[], None]) -> None:
        """Connect, if it isn't; NodeUnreachable."""
        began = time.monotonic()
        with self.lock:
            if is_open():
                return
            if self._why is not None and self._failed_at > began:
                why = self._why
                raise NodeUnreachable(why.summary, why.detail, code=why.code) from why
            try:
                connect()
            except NodeUnreachable as error:
                self._failed_at, self._why = time.monotonic(), error
                raise
