"""Leases: this process as their holder, their renewal, and whether another holder has lost one."""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Self

from trainctl.base.clock import Clock
from trainctl.base.lease import Liveness
from trainctl.base.system import processes
from trainctl.errors import LockHeld, TrainctlError
from trainctl.ledger.state import Intent, LeaseHolder

if TYPE_CHECKING:
    from trainctl.ledger.ledger import Ledger


def current_holder() -> LeaseHolder:
    """This process as a holder of leases. Not cached, as a forked child is another holder."""
    return LeaseHolder(*processes.describe_process(), _current_user())


def is_dead(holder: LeaseHolder) -> bool | None:
    """True if the holder's process has certainly ended, False if it runs, None if this process can't tell."""
    return processes.is_dead(
        processes.Process(holder.machine, holder.boot, holder.pid, holder.started)
    )


@cache
def _current_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


class LeaseMonitor:
    """Decides whether leases of other holders are over."""

    def __init__(self, me: LeaseHolder, clock: Clock, knows: Callable[[str], bool]) -> None:
        self._me = me
        self._knows = knows
        self._liveness = Liveness(clock.elapsed)

    def is_over(self, intent: Intent, read_at: float) -> bool:
        """Whether the intent's holder has lost its lease, as of a read of the log that began at ``read_at``."""
        if intent.holder == self._me:
            return not self._knows(intent.id)
        if is_dead(intent.holder):
            return True
        return self._liveness.is_stale(intent.id, intent.renewals, read_at)


def lock_held_error(intent: Intent) -> LockHeld:
    """The error for an address that another process holds."""
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
    """Renews all leases of a ledger in one append every ``interval`` seconds, while it is entered.

    ``lost`` is called, from a thread, when a lease was ended by others or could not be renewed for its whole length:
    its holder must stop its work then. One thread renews and may hang on a dead disk; another only watches
    the clock.
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
        for work in (self._renew, self._look):
            threading.Thread(target=work, name=f"lease{work.__name__}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    @contextmanager
    def holding(self, intent: Intent) -> Iterator[Intent]:
        """Hold the lease while an effect is caused. An intent without an end stays open, for the next apply."""
        try:
            yield intent
        finally:
            self._ledger.abandon(intent)

    def check(self) -> None:
        """Call ``lost`` if a lease could not be renewed for its whole length; once for each lease."""
        now = self._ledger.clock.elapsed()
        over = {
            one.intent.id
            for one in self._ledger.held()
            if now - one.since >= one.intent.lease_seconds
        }
        if over - self._reported:
            self._reported |= over
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
