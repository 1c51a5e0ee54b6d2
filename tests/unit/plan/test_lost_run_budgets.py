"""How often a lost run is started again without approval."""

from __future__ import annotations

import pytest

from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.plan_file import MAX_INTERRUPTIONS, _may_retry
from trainctl.plan.values import Change

ENDINGS = {
    "lost": (RunStatus.LOST, None),
    "interrupted": (RunStatus.LOST, "interrupted: the machine is taken back at 13:00 UTC"),
    "completed": (RunStatus.COMPLETED, None),
    "vanished": (RunStatus.RUNNING, None),
}
MOST = "interrupted " * MAX_INTERRUPTIONS


@pytest.mark.parametrize(
    ("runs", "attempts", "notices", "may_retry"),
    [
        ("vanished", 1, "imds", True),
        ("interrupted vanished", 1, "imds", True),
        (MOST + "vanished", 1, "imds", False),
        ("lost", 1, "imds", False),
        ("lost", 2, "imds", True),
        ("lost lost", 2, "imds", False),
        ("interrupted", 1, "imds", True),
        ("interrupted interrupted lost", 2, "imds", True),
        ("lost interrupted lost", 2, "imds", False),
        (MOST, 1, "imds", True),
        (MOST + "interrupted", 1, "imds", False),
        (MOST + "completed interrupted", 1, "imds", True),
        ("vanished", 1, None, False),
        ("vanished", 2, None, True),
        ("lost vanished", 2, None, False),
    ],
)
def test_interruptions_have_a_budget_of_their_own(
    runs: str, attempts: int, notices: str | None, *, may_retry: bool
) -> None:
    """Since the last run that was not lost; without notices of its platform somebody may have deleted a machine."""
    records = [
        RunRecord("a", number, "k", status=ENDINGS[name][0], error=ENDINGS[name][1]).to_json()
        for number, name in enumerate(runs.split())
    ]
    values = {"cluster": "lab", "retry": {"max_attempts": attempts, "delay": "0s"}}
    job, lost = Address.parse("job.sft"), ActionReason.RUN_LOST
    change = Change(job, Action.REPLACE, "", lost, values, values, outputs={"runs": records})
    lab = Address.parse("cluster.lab")
    node = {"name": "lab-0", "details": {"notice": {"kind": notices}} if notices else {}}
    state = State(resources={lab: RecordedResource(lab, "rented", {}, {"nodes": [node]})})
    assert _may_retry(change, state) is may_retry
