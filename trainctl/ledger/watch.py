"""When a lease may be taken from its holder."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainctl.errors import Busy
from trainctl.ledger.clock import Clock
from trainctl.ledger.holder import is_dead
from trainctl.ledger.state import Holder, Intent


class LeaseWatch:
    """Remembers, of leases that others hold, since when no renewal was seen; by this process's own clock."""

    def __init__(self, me: Holder, clock: Clock, knows: Callable[[str], bool]) -> None:
        self._me = me
        self._clock = clock
        self._knows = knows
        self._seen: dict[str, tuple[int, float]] = {}

    def is_over(self, intent: Intent, looked_at: float) -> bool:
        """Whether the intent's holder has lost its lease, as the log was when a read began at ``looked_at``."""
        if intent.holder == self._me:
            return not self._knows(intent.id)
        if is_dead(intent.holder):
            return True
        renewals, since = self._seen.get(intent.id, (-1, 0.0))
        if renewals != intent.renewals:
            self._seen[intent.id] = (intent.renewals, self._clock.elapsed())
            return False
        return looked_at - since >= intent.lease_seconds


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
