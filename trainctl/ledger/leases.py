"""Leases on addresses: identity of holders, renewal, detection of dead holders."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from trainctl.base.clock import Clock
from trainctl.base.lease import Liveness
from trainctl.base.system import processes
from trainctl.errors import LockHeld, TrainctlError
from trainctl.ledger.provenance import entry_author
from trainctl.ledger.state import Intent, LeaseHolder, State

if TYPE_CHECKING:
    from trainctl.ledger.ledger import Ledger


def current_holder() -> LeaseHolder:
    """Return this process as a holder; not cached, as a forked child differs."""
    by = entry_author(os.environ)
    return LeaseHolder(*processes.describe_process(), by.actor, by.commit, by.pipeline)


def is_dead(holder: LeaseHolder) -> bool | None:
    """Whether the holder's process is dead; None if unknown, as on other machines."""
    return processes.is_dead(
        processes.Process(holder.machine, holder.boot, holder.pid, holder.started)
    )


@dataclass(frozen=True, slots=True)
class OpenLease:
    """A change without an outcome; ``interrupted``: whether its process has ended, None if unknown."""

    intent: Intent
    interrupted: bool | None


def open_leases(state: State) -> list[OpenLease]:
    """Return the open leases of a state by address."""
    return [
        OpenLease(intent, is_dead(intent.holder))
        for _, intent in sorted(state.open_intents.items())
    ]


class LeaseMonitor:
    """Detects leases that are over because the holder is dead or stopped renewing."""

    def __init__(self, me: LeaseHolder, clock: Clock, knows: Callable[[str], bool]) -> None:
        self._me = me
        self._knows = knows
        self._liveness = Liveness(clock.elapsed)

    def is_over(self, intent: Intent, read_at: float) -> bool:
        """Whether the lease of an intent is over, by a read of the log at ``read_at``."""
        if intent.holder == self._me:
            return not self._knows(intent.id)
        if is_dead(intent.holder):
            return True
        return self._liveness.is_stale(intent.id, intent.renewals, read_at)


def lock_held_error(intent: Intent) -> LockHeld:
    """Create the error for an address locked by another process."""
    last = max(intent.time, intent.renewed)
    return LockHeld(
        f"{intent.address} is locked by {intent.holder.actor} ({intent.action}) since {_clock_time(intent.time)}, until {_clock_time(last + intent.lease_seconds)} unless renewed",
        f"Wait for the lock with --lock-timeout 1m. If that command no longer runs: trainctl force-unlock {intent.id}",
        address=str(intent.address),
    )


def _clock_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


INTERVAL_SECONDS = 10.0
TICK_SECONDS = 1.0


class LeaseRenewer:
    """Context manager that renews all leases of a ledger every ``interval`` seconds.

    Calls ``lost`` from a thread if a lease was ended by others or could not be renewed in time: then its holder must
    stop. One thread renews and may hang on a dead disk, so another watches the clock.
    """

    def __init__(
        self, ledger: Ledger, lost: Callable[[], None], interval: float = INTERVAL_SECONDS
    ) -> None:
        self._ledger = ledger
        self._lost = lost
        self._interval = interval
        self._stopped = threading.Event()
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        for work in (self._renew, self._watch):
            threading.Thread(target=work, name=f"lease{work.__name__}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    @contextmanager
    def holding(self, intent: Intent) -> Iterator[Intent]:
        """Hold the lease in a block; without outcome, the intent stays open."""
        try:
            yield intent
        finally:
            self._ledger.leave_open(intent)

    def check(self) -> None:
        """Call ``lost`` once for each lease that could not be renewed in time."""
        now = self._ledger.clock.elapsed()
        expired = {
            lease.intent.id
            for lease in self._ledger.held()
            if now - lease.since >= lease.intent.lease_seconds
        }
        if expired - self._reported:
            self._reported |= expired
            self._lost()

    def _renew(self) -> None:
        pause = self._interval
        while not self._stopped.wait(pause):
            pause = self._interval
            try:
                if self._ledger.renew():
                    self._lost()
            except TrainctlError:
                pause = self._interval / 5  # _watch detects the expiry

    def _watch(self) -> None:
        while not self._stopped.wait(min(TICK_SECONDS, self._interval)):
            self.check()
