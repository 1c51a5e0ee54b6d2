"""Screens of the state, its leases and its history."""

from __future__ import annotations

from dataclasses import replace

from jsonschema import validate
from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import text
from tests.support.projects.plans import PlanScenario, at, change_of, intent_of, state_after
from trainctl.ledger.history import HistoryRow
from trainctl.ledger.leases import OpenLease
from trainctl.ledger.state import State
from trainctl.model.address import Address
from trainctl.model.delivery import DeliveryRecord, MirroringRecord
from trainctl.plan.planner import make_plan
from trainctl.views.state import (
    LEASE_COLUMNS,
    history_lines,
    lease_lines,
    lease_rows,
    resource_lines,
    state_lines,
)
from trainctl_schemas import schema

PLAN = make_plan(PlanScenario().inputs())
INTENT = replace(intent_of(change_of(PLAN, "job.sft")), id="0123456789ab")
ROW = HistoryRow(3, 0.0, "eve@host", "job.sft", "create", None, "abcdefg", "TRAINING_JOB_RUNNING")


def test_state(screen: SnapshotAssertion) -> None:
    """A line a resource, below them the changes in progress; a job shows its values and runs."""
    state = state_after(PLAN, created_at=0.0)
    interrupted = replace(state, lineage="lineage", open_intents={INTENT.address: INTENT})
    job = resource_lines(state.resources[at("job.sft")])
    lines = state_lines(interrupted, [OpenLease(INTENT, True)])
    assert text(lines, job, state_lines(State())) == screen


def test_leases(screen: SnapshotAssertion) -> None:
    """Ended, running and unknown holders, with the id that force-unlock takes."""
    leases = [OpenLease(INTENT, known) for known in (True, False, None)]
    assert text(lease_lines(leases, 90.0, 80)) == screen
    assert lease_lines([], 0.0) == ["No open leases."]
    rows = lease_rows(leases, 90.0)
    assert [(row["age_seconds"], row["interrupted"]) for row in rows] == [
        (90.0, True), (90.0, False), (90.0, None),
    ]  # fmt: skip
    assert set(LEASE_COLUMNS) == set(rows[0])
    validate({"leases": rows}, schema("leases"))


def test_history(screen: SnapshotAssertion) -> None:
    """Names of others are escaped, transfers are compared with their forecast, and repeated observations left out."""
    deliveries = tuple(
        DeliveryRecord(rank, f"lab/{rank}", "weights.w", "peers", seconds, {"peers": 10**9}, 2.0)
        for rank, seconds in ((0, 3.0), (1, 4.0))
    )
    observed = replace(ROW, address="job.a", action="observe")
    mirroring = HistoryRow(3, 0.0, "eve@host", "weights.w", "create", None, None, "done")
    screens = [
        [replace(ROW, actor="eve\x1b[2J@host")],
        [
            replace(ROW, deliveries=deliveries),
            replace(mirroring, mirrored=MirroringRecord(2 * 10**9, 4.0, 5)),
            replace(mirroring, mirrored=MirroringRecord(2 * 10**9, 4.0)),
            replace(mirroring, mirrored=MirroringRecord(0, 0.1)),
        ],
        [
            replace(observed, action="create"),
            observed,
            replace(observed, address="job.b"),
            *[replace(observed, status="TRAINING_JOB_COMPLETED")] * 2,
        ],
        [],
    ]
    nothing = history_lines([], Address.parse("job.x"))
    assert text(*map(history_lines, screens), nothing) == screen
