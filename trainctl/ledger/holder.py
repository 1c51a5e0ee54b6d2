"""This process as a holder of leases, and whether another holder has ended."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable
from functools import cache

from trainctl.base import processes
from trainctl.base.clock import Clock
from trainctl.base.lease import Liveness
from trainctl.errors import Busy
from trainctl.ledger.state import Holder, Intent


def this_process() -> Holder:
    """This process as a holder of leases. Not cached, as a forked child is another holder."""
    return Holder(*processes.process(), _who())


def is_dead(holder: Holder) -> bool | None:
    """True if the holder's process has certainly ended, False if it runs, None if this process can't tell."""
    return processes.is_dead(
        processes.Process(holder.machine, holder.boot, holder.pid, holder.started)
    )


@cache
def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


class LeaseWatch:
    """Decides whether leases of other holders are over."""

    def __init__(self, me: Holder, clock: Clock, knows: Callable[[str], bool]) -> None:
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


def held_by(intent: Intent) -> Busy:
    """What is said to whoever wants an address that another holds."""
    last = max(intent.time, intent.renewed)
    return Busy(
        f"{intent.address} is being changed ({intent.action}) by {intent.holder.who} "
        f"since {_clock_time(intent.time)}, until {_clock_time(last + intent.lease_seconds)} unless renewed",
        "Wait for it: --lease-timeout 1m. "
        f"If that command is gone for good: trainctl force-unlock {intent.id}",
        address=str(intent.address),
    )


def _clock_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
