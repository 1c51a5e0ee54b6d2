"""Getting one's turn at an address, and finding that others have done the work meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainctl.apply.interrupt import Interrupt
from trainctl.errors import Busy, DoneByTwin, Interrupted, StalePlan
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.action import Reason
from trainctl.plan.graph import REMOVES
from trainctl.plan.values import Change

POLL_SECONDS = 1.0
"""How often a lease that another holds is asked for again."""


def wait_for_turn(begin: Callable[[], Intent], seconds: float, interrupt: Interrupt) -> Intent:
    """Begin, as soon as nobody else holds the address. Busy after so many seconds; Interrupted if the user leaves."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return begin()
        except Busy:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            if interrupt.stopping.wait(min(POLL_SECONDS, left)):
                raise Interrupted("interrupted while it waited for its turn") from None


def is_so(change: Change, recorded: Recorded | None) -> bool:
    """Whether the record is already what a change of values was to make it, whoever did that.

    Not of a run that was asked for: another's run with the same values is not it.
    """
    if change.reason is Reason.BY_REQUEST:
        return False
    if change.action in REMOVES:
        return recorded is None
    return recorded is not None and change.before != change.after == recorded.attributes


def is_twins(change: Change, error: StalePlan) -> bool:
    """Whether it is stale because another apply of the very same plan made this change. Not a run that was asked for: the
    other's is not this one, and must not be stopped for it."""
    return isinstance(error, DoneByTwin) and change.reason is not Reason.BY_REQUEST
