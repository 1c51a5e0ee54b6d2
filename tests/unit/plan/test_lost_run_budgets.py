"""How often a lost run is started again without approval."""

from __future__ import annotations

import pytest

from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.plan_file import MAX_INTERRUPTIONS, _may_retry
from trainctl.plan.values import Change


def change_after(runs: str, attempts: int) -> Change:
    """The next run after lost (``l``), interrupted (``i``), completed (``c``) and vanished (``v``) runs, the newest last."""
    records = {
        "l": ("TRAINING_JOB_LOST", None),
        "i": ("TRAINING_JOB_LOST", "interrupted: the machine is taken back at 13:00 UTC"),
        "c": ("TRAINING_JOB_COMPLETED", None),
        "v": ("TRAINING_JOB_RUNNING", None),
    }
    found = [
        RunRecord("a", number, "k", status=RunStatus(records[letter][0]), error=records[letter][1])
        for number, letter in enumerate(runs)
    ]
    values = {"cluster": "lab", "retry": {"max_attempts": attempts, "delay": "0s"}}
    return Change(
        address=Address.parse("job.sft"),
        action=Action.REPLACE,
        provider="",
        reason=ActionReason.RUN_LOST,
        before=values,
        after=values,
        outputs={"runs": [run.to_json() for run in found]},
    )


def state_of(notice: str | None) -> State:
    """A state with the job's cluster of one machine."""
    lab = Address.parse("cluster.lab")
    node = {"name": "lab-0", "details": {"notice": {"kind": notice}} if notice else {}}
    return State(resources={lab: RecordedResource(lab, "rented", {}, {"nodes": [node]})})


@pytest.mark.parametrize(
    ("runs", "attempts", "expected"),
    [
        ("v", 1, True),
        ("iv", 1, True),
        ("i" * MAX_INTERRUPTIONS + "v", 1, False),
        ("l", 1, False),
        ("l", 2, True),
        ("ll", 2, False),
        ("i", 1, True),
        ("iil", 2, True),
        ("lil", 2, False),
        ("i" * MAX_INTERRUPTIONS, 1, True),
        ("i" * (MAX_INTERRUPTIONS + 1), 1, False),
        ("i" * MAX_INTERRUPTIONS + "ci", 1, True),
    ],
)
def test_interruptions_have_a_budget_of_their_own(runs: str, attempts: int, expected: bool) -> None:
    """Since the last run that was not lost."""
    assert _may_retry(change_after(runs, attempts), state_of("imds")) is expected


@pytest.mark.parametrize(
    ("runs", "attempts", "expected"), [("v", 1, False), ("v", 2, True), ("lv", 2, False)]
)
def test_machines_that_platforms_leave_alone_vanish_as_runs_fail(
    runs: str, attempts: int, expected: bool
) -> None:
    """Somebody may have deleted them."""
    assert _may_retry(change_after(runs, attempts), state_of(None)) is expected
