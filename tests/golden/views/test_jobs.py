"""Screens of runs, sweeps, checkpoints and metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import text, windows
from tests.unit.views.test_json import problems
from trainctl.errors import UsageError
from trainctl.model.address import Address, Kind
from trainctl.model.reports import Checkpoint, JobStatus, RankSample, RunResult
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.views.runs.metrics import metrics_csv, metrics_json, metrics_lines, sample_json
from trainctl.views.runs.results import results_csv, results_json, results_table, sort_results
from trainctl.views.runs.status import status_json, status_lines, status_table, sweep_lines
from trainctl.views.terminal.text import csv_text

SFT = Address.parse("job.sft")


def job(key: str | None, status: RunStatus, waiting: str | None = None, **more: Any) -> JobStatus:
    """A job, or with a key one of a sweep; ``more`` are its run's error and its matrix."""
    rank = RankRecord(rank=0, node="local/local-0", status=status)
    run = RunRecord("7f4qg7l", 1, "local-0", status=status, ranks=(rank,), now={"waiting": waiting})
    run = replace(run, error=more.pop("error", None))
    return JobStatus(Address(Kind.JOB, "fit", key), run, matrix=tuple(more.items()))


def checkpoint(name: str, step: int | None = 100, **more: Any) -> Checkpoint:
    return Checkpoint(name, "7f4qg7l", 0, step, 10, 1, "complete", 0.0, "file:///x", **more)


def test_sweep(screen: SnapshotAssertion) -> None:
    """Values that all runs share are shown once, and so is each reason of a failure; a reason has one line."""
    shared = {"model": "small", "batch": "32"}
    jobs = [
        job("1", RunStatus.FAILED, lr="1", error="exited with 1\nmore", **shared),
        job("2", RunStatus.FAILED, lr="2", error="exited with 1", **shared),
        job("3", RunStatus.DEPLOY_FAILED, lr="3", error="no such image", **shared),
        *(job(f"{n}", RunStatus.LOST, lr=f"{n}", error=f"lost {n}", **shared) for n in range(4, 8)),
        job("8", RunStatus.COMPLETED, lr="8e-1", **shared),
        job("9", RunStatus.PENDING, "waits\nfor\x1b[2J", lr="9", **shared),
    ]
    assert windows(lambda width: sweep_lines(jobs, 0.0, width), 80, 120) == screen
    assert all(line.isprintable() for line in status_table([jobs[-1]]))


def reported(**values: list[float]) -> dict[str, Any]:
    """Results with these values, at the steps 0, 10, and so on."""

    def result(points: list[float]) -> dict[str, Any]:
        rows = [{"value": value, "step": 10 * number} for number, value in enumerate(points)]
        return {
            "last": rows[-1],
            "min": min(rows, key=lambda row: row["value"]),
            "max": max(rows, key=lambda row: row["value"]),
        }

    return {key: result(points) for key, points in values.items()}


def results() -> list[RunResult]:
    rows = []
    for lr, values in (
        ("1e-2", {"loss": [3, 1, 2], "val_loss": [5, 2, 4], "\x1b[2J": [1]}),
        ("1e-3", {"loss": [4, 3], "tokens per s": [12345.678, 99]}),
        ("1e-4", {}),
    ):
        status = job(f"lr={lr}", RunStatus.COMPLETED, lr=lr, model="small")
        run = replace(status.run, reported={"results": reported(**values)})
        status = replace(status, run=run, checkpoints=(checkpoint("checkpoint-100"),))
        rows.append(RunResult(status, 61.5, 0.25 if values else None))
    return rows


def test_results(screen: SnapshotAssertion) -> None:
    """Columns that don't fit are named; a run that lacks the key is last."""
    rows = results()
    sorted_by = {by: sort_results(rows, by) for by in ("val_loss", "loss:max")}
    assert (
        windows(lambda width: results_table(rows, width), 60, 80, 120)
        + text(
            *(results_table(found, 100, by) for by, found in sorted_by.items()),
            csv_text(*results_csv(rows)).split("\n")[:-1],
            results_table([]),
            status_lines(rows[0].status, 0.0),
        )
        == screen
    )
    assert problems("results", results_json(rows)) == []
    with pytest.raises(UsageError, match="no run has reported 'val_los'") as raised:
        sort_results(rows, "val_los:max")
    assert raised.value.detail == "Did you mean val_loss?"


def test_status_shows_the_newest_of_many_checkpoints(screen: SnapshotAssertion) -> None:
    """Programs get all of them. A run past its deadline is being stopped."""
    steps = [checkpoint(f"checkpoint-{step}", step) for step in range(1, 2001)]
    running = job("lr=1", RunStatus.RUNNING)
    many = replace(
        running, deadline=100.0, checkpoints=(*steps, checkpoint("runs", None, type="other"))
    )
    few = replace(running, checkpoints=tuple(steps[:3]))
    assert len(status_json(many)["checkpoints"]) == 2001
    assert (
        text(
            status_lines(many, 95.0),
            status_lines(many, 100.0, named=True),
            status_lines(few, 0.0),
        )
        == screen
    )


HOST = {
    "cpu_count": 8, "cpu_seconds": 5.0, "memory_total_bytes": 100_000_000_000,
    "memory_available_bytes": 25_000_000_000, "network_received_bytes": 1, "network_sent_bytes": 2,
}  # fmt: skip
GPUS: dict[str, Any] = {
    "gpu_names": {"0": "H100", "1": "H100"},
    "gpu_utilization": {"0": 0.99, "1": None},
    "gpu_memory_usage_bytes": {"0": 79_000_000_000, "1": None},
    "gpu_memory_total_bytes": {"0": 80_000_000_000, "1": None},
}
"""Two GPUs, of which one reports nothing."""
FULL = {"usage_bytes": 5_000_000, "utilization": 0.95, "free_bytes": 1000}
UNKNOWN = {"usage_bytes": None, "utilization": 0.5, "free_bytes": 1000}


def sample(time: float, cpu: float | None, rank: int = 0, **more: Any) -> RankSample:
    row = {
        "time": time, "cpu_usage": cpu, "cpu_seconds": 9.0, "cpu_memory_usage_bytes": int(time) * 10**9,
        "processes": 4, "host": HOST, **more,
    }  # fmt: skip
    return RankSample.of(rank, f"lab/gpu-{rank}", row)


SAMPLES = [
    sample(1, None, ephemeral_storage=UNKNOWN),
    sample(2, 7.5, ephemeral_storage=FULL, cache=UNKNOWN, **GPUS),
    sample(3, 0.5, ephemeral_storage=UNKNOWN, problem="nvidia-smi timed out after 5 s"),
    sample(3, 2.0, 1),
]


def test_metrics(screen: SnapshotAssertion) -> None:
    """Memory and disks over 70 % are yellow, over 90 % red; a column needs a value.

    A live run shows its newest samples, an ended one its peaks.
    """

    def lines(samples: list[RankSample], status: RunStatus = RunStatus.RUNNING) -> list[str]:
        run = RunRecord("abcdefg", 3, "key", status=status)
        return metrics_lines(
            SFT,
            run,
            samples,
            lambda text, name: text if name == "dim" else f"<{name}>{text}</>",
            15.0,
        )

    screens = [lines(SAMPLES), lines(SAMPLES[:2]), lines(SAMPLES[3:]), lines([])]
    assert text(*screens, lines(SAMPLES, RunStatus.COMPLETED)) == screen


def test_metrics_as_csv(screen: SnapshotAssertion) -> None:
    assert text(csv_text(*metrics_csv(SAMPLES)).split("\n")[:-1]) == screen
    forms = [metrics_json(SFT, RunRecord("abcdefg", 3, "key"), SAMPLES), *map(sample_json, SAMPLES)]
    assert [problems("metrics", form) for form in forms] == [[]] * 5
