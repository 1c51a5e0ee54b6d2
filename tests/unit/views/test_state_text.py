"""The state and its history as text."""

from __future__ import annotations

from dataclasses import replace

from jsonschema import validate

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


def test_a_state_is_a_line_for_each_resource() -> None:
    """Each resource says how it stands; what is being changed stands below."""
    plan = make_plan(PlanScenario().inputs())
    intent = intent_of(change_of(plan, "job.sft"))
    state = replace(state_after(plan), open_intents={intent.address: intent})

    assert state_lines(state, [OpenLease(intent, True)]) == [
        "RESOURCE       PROVIDER  STATE",
        "project.demo   trainctl",
        "cluster.lab    local     1 node",
        "weights.qwen3  trainctl  c1899de289a0, 4 files, 1.5 GB",
        "job.sft        trainctl  run 1 completed",
        "",
        "Started and not finished:",
        '  create job.sft by "ana@laptop" since 1970-01-01 00:00:00 UTC, interrupted',
        "The next apply resumes what was interrupted, or first undoes it if the manifest has changed.",
        "",
        f"Serial 1, lineage {state.lineage}",
    ]


def test_leases_are_a_table_and_rows() -> None:
    """Who is at what for how long, as far as that is known, with the id that force-unlock takes; it fits 80 columns."""
    intent = intent_of(change_of(make_plan(PlanScenario().inputs()), "job.sft"))
    leases = [OpenLease(intent, known) for known in (True, False, None)]

    lines = lease_lines(leases, 90.0, 80)
    rows = lease_rows(leases, 90.0)

    assert [line.split()[:2] for line in lines[1:4]] == [["job.sft", "create"]] * 3
    assert [line.split()[-2] for line in lines[1:4]] == ["ended", "running", "unknown"]
    assert lines[1].endswith(intent.id)
    assert len(lines[5:]) == 2
    assert lease_lines([], 0.0) == ["No open leases."]
    assert [(row["age_seconds"], row["interrupted"]) for row in rows] == [
        (90.0, True),
        (90.0, False),
        (90.0, None),
    ]
    assert set(LEASE_COLUMNS) == set(rows[0])
    validate({"leases": rows}, schema("leases"))


def test_an_empty_state_says_so() -> None:
    """Nothing is never shown as nothing."""
    assert state_lines(State()) == ["The state is empty."]
    assert history_lines([]) == ["No history yet."]


def test_one_resource_shows_its_values_and_runs() -> None:
    """A job shows what it was made with, its runs and what it depends on."""
    state = state_after(make_plan(PlanScenario().inputs()), created_at=0.0)

    lines = resource_lines(state.resources[at("job.sft")])

    assert lines[0] == "job.sft (trainctl)"
    assert '  cluster                      = "lab"' in lines
    assert "  run 1 (run0001)  completed  lab/lab-0  1970-01-01 00:00:00" in lines
    assert lines[-1] == "  depends on project.demo, cluster.lab, weights.qwen3"


def test_history_is_a_table_of_escaped_rows() -> None:
    """Who and what come from logs that others wrote, and can't paint."""
    rows = [
        HistoryRow(
            3,
            0.0,
            "eve\x1b[2J@host",
            "job.sft",
            "create",
            None,
            "abcdefg",
            "TRAINING_JOB_COMPLETED",
        )
    ]

    assert history_lines(rows) == [
        "SERIAL  TIME (UTC)           WHO                ADDRESS  ACTION  STATUS",
        "     3  1970-01-01 00:00:00  eve\\u001b[2J@host  job.sft  create  completed abcdefg",
    ]


def test_history_shows_what_was_delivered_beside_the_forecast() -> None:
    """Bytes of all ranks, the time of the slowest, and what the plan said of that one; no column where nothing moved."""
    deliveries = tuple(
        DeliveryRecord(
            rank, f"lab/lab-{rank}", "weights.w", "peers", seconds, {"peers": 10**9}, 2.0
        )
        for rank, seconds in ((0, 3.0), (1, 4.0))
    )
    row = HistoryRow(
        3, 0.0, "eve@host", "job.sft", "create", None, "abcdefg", "TRAINING_JOB_RUNNING"
    )

    assert history_lines([replace(row, deliveries=deliveries)])[1].endswith(
        "2.0 GB in 4.0 s, forecast 2.0 s"
    )
    assert "MOVED" not in history_lines([row])[0]


def test_history_leaves_out_looks_that_found_what_was_known() -> None:
    """A run that is still running is told of once, however often somebody looked; each change of it is told."""
    seen = HistoryRow(1, 0.0, "eve@host", "job.a", "observe", None, "r1", "TRAINING_JOB_RUNNING")
    rows = [
        replace(seen, action="create"),
        seen,
        replace(seen, address="job.b"),
        replace(seen, status="TRAINING_JOB_COMPLETED"),
        replace(seen, status="TRAINING_JOB_COMPLETED"),
    ]
    told = [line.split()[4:7] for line in history_lines(rows)[1:]]
    assert told == [
        ["job.a", "create", "running"],
        ["job.b", "observe", "running"],
        ["job.a", "observe", "completed"],
    ]


def test_history_fits_a_narrow_window() -> None:
    """Where and why give way; times and states stay whole."""
    row = HistoryRow(
        1, 0.0, "somebody@a.long.host", 'job.fit["lr=1e-2,seed=12"]', "create", "x", "r1", "ok"
    )
    lines = history_lines([row], width=80)
    assert max(map(len, lines)) <= 80
    assert "1970-01-01 00:00:00" in lines[1]
    assert "…" in lines[1]
    moved = history_lines([replace(row, mirrored=MirroringRecord(2 * 10**9, 4.0, 5))], width=80)
    assert moved[2].strip() == "2.0 GB in 4.0 s, 5 B via the client"
    assert max(map(len, moved)) <= 80
    assert history_lines([], Address.parse("job.x")) == ["No history of job.x."]


def test_history_shows_what_was_mirrored_and_what_of_it_crossed_the_operators_machine() -> None:
    """In the same column; nothing where all of it was there already."""
    row = HistoryRow(3, 0.0, "eve@host", "weights.w", "create", None, None, "done")
    lines = history_lines(
        [
            replace(row, mirrored=MirroringRecord(2 * 10**9, 4.0, 5)),
            replace(row, mirrored=MirroringRecord(2 * 10**9, 4.0)),
            replace(row, mirrored=MirroringRecord(0, 0.1)),
        ]
    )

    assert lines[1].endswith("2.0 GB in 4.0 s, 5 B via the client")
    assert lines[2].endswith("2.0 GB in 4.0 s")
    assert lines[3].rstrip().endswith("done")
