"""Tables of runs, sweeps and checkpoints in narrow windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainctl.model.address import Address, Kind
from trainctl.model.reports import Checkpoint, JobStatus
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.views.jobs.checkpoints import checkpoint_table
from trainctl.views.jobs.status import status_json, status_lines
from trainctl.views.jobs.status_tables import status_table, sweep_lines
from trainctl.views.terminal.tables import table

WAITS = "waits for one of 2 slots of job.fit, 1 ahead"


def job(key: str | None, status: RunStatus, matrix: dict[str, str], waiting: str = "") -> JobStatus:
    """Of a job or a combination of one."""
    rank = RankRecord(rank=0, node="local/local-0", status=status)
    run = RunRecord(
        id="7f4qg7l",
        number=1,
        key="local-0",
        status=status,
        ranks=(rank,),
        waiting=waiting or None,
    )
    return JobStatus(Address(Kind.JOB, "fit", key), run, matrix=tuple(matrix.items()))


def checkpoint(name: str, **more: Any) -> Checkpoint:
    """A small one."""
    return Checkpoint(
        name=name,
        run="7f4qg7l",
        rank=0,
        step=100,
        bytes=10,
        files=1,
        url="file:///x",
        created_at=0.0,
        state="complete",
        **more,
    )


def test_the_counts_of_a_sweep_are_never_cut() -> None:
    """What else the row says gives way, or the row is broken."""
    found = [
        job("lr=1", RunStatus.RUNNING, {}),
        job("lr=2", RunStatus.PENDING, {}, WAITS),
        job("lr=3", RunStatus.FAILED, {}),
        job("lr=4", RunStatus.COMPLETED, {}),
        job("lr=5", RunStatus.STOPPED, {}),
    ]
    counts = "1 running, 1 pending, 1 failed, 1 stopped, 1 completed"

    assert all(counts in status_table(found, width)[1] for width in (40, 80, 90, 120, None))


def test_what_a_run_waits_for_is_cut_or_whole() -> None:
    """Not to a few letters, which say nothing: then the row is broken."""
    found = [job(None, RunStatus.PENDING, {}, WAITS)]

    assert len(status_table(found, 80)[1]) <= 80
    assert len(status_table(found, 60)[1]) <= 60
    assert f"pending: {WAITS}" in status_table(found, 40)[1]


def test_what_all_runs_of_a_sweep_share_is_said_once() -> None:
    """Only what differs has a column."""
    same = {"model": "small", "batch": "32"}
    found = [job(f"lr={lr}", RunStatus.COMPLETED, {"lr": lr, **same}) for lr in ("1e-2", "1e-3")]
    lines = sweep_lines(found, 0.0, 80)

    assert lines[:2] == ["Same for all: model=small, batch=32", ""]
    assert lines[2].split() == ["lr", "STATUS", "RUN"]
    assert [line.split()[0] for line in lines[3:5]] == ["1e-3", "1e-2"]


def test_names_of_checkpoints_are_never_cut() -> None:
    """``--name`` wants them whole. A base model gives way, where there is one."""
    name = "checkpoint-of-a-long-name-100"
    model = "organisation/a-model-with-a-name-that-is-longer-than-most"
    plain = checkpoint_table([checkpoint(name)], 80)
    tuned = checkpoint_table([checkpoint(name, base_model=model)], 110)

    assert plain[0].split() == ["RUN", "CHECKPOINT", "STEP", "SIZE", "STATE", "CREATED", "(UTC)"]
    assert name in plain[1]
    assert len(plain[1]) <= 80
    assert name in tuned[1]
    assert len(tuned[1]) <= 110


def test_what_is_waited_for_stays_in_its_row() -> None:
    """A node says it, perhaps with the name of somebody's process."""
    said = "waits\nfor\x1b[2J"
    alone = job(None, RunStatus.PENDING, {}, said)
    found = [job("lr=1", RunStatus.PENDING, {}, said), job("lr=2", RunStatus.LOST, {})]

    for lines in (status_table([alone]), sweep_lines(found, 0.0)):
        assert any(r"pending: waits\nfor\u001b[2J" in line for line in lines)
        assert all(line.isprintable() for line in lines)


def test_a_narrow_window_leaves_out_what_matters_least() -> None:
    """When a run began goes before a row is broken; nothing does where there is room, or where it has to be broken all the same."""
    rows = [
        ["job.training", "12 (7f4qg7l)", "checkpoint sync failed", "lab/lab-0", "2026-11-23 05:22"]
    ]
    headers = ["JOB", "RUN", "STATUS", "NODE", "STARTED"]
    drops = ("STARTED", "NODE")
    whole = table(headers, rows, width=100, drops=drops, shrinks=frozenset())
    narrow = table(headers, rows, width=70, drops=drops, shrinks=frozenset())
    hopeless = table(headers, rows, width=20, drops=drops, shrinks=frozenset())
    assert whole[0].split() == headers
    assert narrow[0].split() == headers[:-1]
    assert hopeless == whole


def test_of_many_checkpoints_the_newest_are_shown() -> None:
    """And where all are; programs get them all."""
    one = job("lr=1", RunStatus.RUNNING, {})
    steps = [replace(checkpoint(f"checkpoint-{step}"), step=step) for step in range(1, 2001)]
    many = replace(one, checkpoints=(*steps, replace(checkpoint("runs"), step=None, type="other")))

    shown = [line.strip() for line in status_lines(many, 0.0) if "checkpoint" in line]
    assert shown == [
        *(f"checkpoint    checkpoint-{step}, rank 0, 10 B" for step in (1998, 1999, 2000)),
        "… and 1,998 more: trainctl checkpoints list 'fit[\"lr=1\"]'",
    ]
    assert status_lines(many, 0.0, named=True)[-1].endswith("--run 7f4qg7l")
    assert len(status_json(many)["checkpoints"]) == 2001
    few = status_lines(replace(one, checkpoints=tuple(steps[:3])), 0.0)
    assert ["more" in line for line in few[-3:]] == [False] * 3


def test_a_run_past_its_deadline_is_being_ended() -> None:
    """It may take its grace, and ignore what asks it to end."""
    late = replace(job("lr=1", RunStatus.RUNNING, {}), deadline=100.0)

    assert "  deadline      in 5.0 s" in status_lines(late, 95.0)
    assert "  deadline      exceeded, stopping" in status_lines(late, 100.0)


def test_a_sweep_tells_why_its_runs_failed() -> None:
    """Each reason once, below its rows."""

    def failed(key: str, status: RunStatus, error: str) -> JobStatus:
        one = job(key, status, {"lr": key})
        return replace(one, run=replace(one.run, error=error))

    found = [
        failed("1", RunStatus.FAILED, "exited with 1\nmore"),
        failed("2", RunStatus.FAILED, "exited with 1"),
        failed("3", RunStatus.DEPLOY_FAILED, "no such image"),
        *(failed(f"{n}", RunStatus.LOST, f"lost {n}") for n in range(4, 8)),
        job("8", RunStatus.COMPLETED, {"lr": "8"}),
    ]
    lines = sweep_lines(found, 0.0)

    assert lines[-6:-4] == ["  failed (2): exited with 1", "  deploy failed: no such image"]
    assert lines[-1] == "  … and 1 more reasons: trainctl status JOB"
