"""Connecting once for all who need a connection at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from trainctl.errors import NodeUnreachable

_REMEMBERED_SECONDS = 1.0
"""A command often connects twice in a row: an unreachable host is waited for once. Retries wait longer than this."""


class Attempts:
    """One attempt at a time, under ``lock``. Threads that waited for a failed one, or come just afterwards, get its error."""

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
            if self._why is not None and began < self._failed_at + _REMEMBERED_SECONDS:
                why = self._why
                raise NodeUnreachable(why.summary, why.detail, code=why.code) from why
            try:
                connect()
            except NodeUnreachable as error:
                self._failed_at, self._why = time.monotonic(), error
                raise
