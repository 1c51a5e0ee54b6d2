"""Keeping this process's leases alive, and noticing when that is no longer so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from trainctl.errors import TrainctlError
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.state import Intent

INTERVAL_SECONDS = 10.0
TICK_SECONDS = 1.0


class LeaseKeeper:
    """Renews all leases of a ledger in one append every ``interval`` seconds, while it is entered.

    ``lost`` is called, from a thread, when a lease was ended by others or could not be renewed for its whole length:
    whoever holds it must stop its work then. One thread renews and may hang on a dead disk; another only looks
    at the clock.
    """

    def __init__(
        self, ledger: Ledger, lost: Callable[[], None], interval: float = INTERVAL_SECONDS
    ) -> None:
        self._ledger = ledger
        self._lost = lost
        self._interval = interval
        self._stopped = threading.Event()
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        for work in (self._renew, self._look):
            threading.Thread(target=work, name=f"lease{work.__name__}", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()

    @contextmanager
    def holding(self, intent: Intent) -> Iterator[Intent]:
        """While an effect is being caused. An intent that has no end by then is left open, for whoever comes next."""
        try:
            yield intent
        finally:
            self._ledger.leave(intent)

    def check(self) -> None:
        """Call ``lost`` if a lease could not be renewed for its whole length; once for each lease."""
        now = self._ledger.clock.elapsed()
        over = {
            one.intent.id
            for one in self._ledger.held()
            if now - one.since >= one.intent.lease_seconds
        }
        if over - self._told:
            self._told |= over
            self._lost()

    def _renew(self) -> None:
        pause = self._interval
        while not self._stopped.wait(pause):
            pause = self._interval
            try:
                if self._ledger.renew():
                    self._lost()
            except TrainctlError:
                pause = self._interval / 5  # sooner; the other thread says when it is too late

    def _look(self) -> None:
        while not self._stopped.wait(min(TICK_SECONDS, self._interval)):
            self.check()
