"""Waiting for one's turn at an address, and finding the work done."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import (
    LockTimeout,
    is_already_recorded,
    is_concurrent_apply,
    wait_for_lock,
)
from trainctl.errors import AlreadyApplied, LockHeld, StalePlan, UserInterrupt
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.plan.values import Change

JOB = Address.parse("job.a")
CHANGE = Change(JOB, Action.REPLACE, "local", before={"lr": 1}, after={"lr": 2}, seen=3)


def recorded(**attributes: int) -> RecordedResource:
    return RecordedResource(JOB, "local", attributes, {})


def busy() -> Intent:
    raise LockHeld("job.a is being changed")


def test_waiting_ends_with_the_time_that_was_allowed() -> None:
    tries = []

    def begin() -> Intent:
        tries.append(1)
        return busy()

    with pytest.raises(LockHeld):
        wait_for_lock(begin, LockTimeout(0.0), Interrupt())
    assert len(tries) == 1


def test_an_interrupt_ends_the_waiting() -> None:
    interrupt = Interrupt()
    threading.Timer(0.05, interrupt.stopping.set).start()
    with pytest.raises(UserInterrupt):
        wait_for_lock(busy, LockTimeout(3600.0), interrupt)


def test_waits_of_a_command_count_together_and_at_the_same_time_once() -> None:
    """Whether for the state or the mirror, so that a command ends in the time that it was given."""
    now = 100.0
    timeout = LockTimeout(10.0, lambda: now)
    assert timeout.spend(0.0) == 10.0
    now = 104.0
    assert timeout.spend(4.0) == 6.0
    assert timeout.spend(4.0) == 6.0  # another step in the same seconds
    now = 200.0
    timeout.spend_on_mirror("waits for ann, who mirrors the same source")
    assert timeout.spend(0.0) == 5.0
    now = 205.0
    timeout.spend(5.0)
    with pytest.raises(LockHeld, match="waits for ann, who mirrors the same source"):
        timeout.spend_on_mirror("waits for ann, who mirrors the same source")
    LockTimeout(None).spend_on_mirror("waits for ann, who mirrors the same source")


@pytest.mark.parametrize(
    ("change", "resource", "so"),
    [
        (CHANGE, recorded(lr=2), True),
        (CHANGE, recorded(lr=1), False),
        (CHANGE, None, False),
        (replace(CHANGE, before={"lr": 2}), recorded(lr=2), False),
        (replace(CHANGE, action=Action.DELETE), None, True),
        (replace(CHANGE, action=Action.DELETE), recorded(lr=1), False),
    ],
)
def test_what_another_made_so(change: Change, resource: RecordedResource | None, so: bool) -> None:
    """Only a change of values can have been made by someone else; a run that is due for another reason is still due."""
    assert is_already_recorded(change, resource) is so


def test_a_twin_is_another_apply_of_the_same_plan() -> None:
    """Its outcome is ours; not that of another plan, and not where a run was asked for."""
    asked = replace(CHANGE, reason=ActionReason.BY_REQUEST)

    assert is_concurrent_apply(CHANGE, AlreadyApplied("moved"))
    assert not is_concurrent_apply(CHANGE, StalePlan("moved"))
    assert not is_concurrent_apply(asked, AlreadyApplied("moved"))
