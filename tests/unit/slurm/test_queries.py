"""What the commands of Slurm print."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.plugin_api.scheduler import BatchState
from trainctl_slurm.queries import (
    parse_accounting,
    parse_forecast,
    parse_jobs,
    parse_machines,
    parse_partitions,
)


def row(number: int, state: str, reason: str = "None", restarts: int = 0, comment: str = "") -> str:
    comment = comment or "trainctl:key-1 job.train run 1 (abc)"
    end = "2026-11-26T15:49:30"
    columns = ((24, number), (24, state), (12, restarts), (80, reason), (400, "n[1-2]"), (24, end), (600, comment))  # fmt: skip
    return "".join(f"{value:<{width}}" for width, value in columns)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", BatchState.PENDING),
        ("CONFIGURING", BatchState.RUNNING),
        ("COMPLETING", BatchState.RUNNING),
        ("TIMEOUT", BatchState.TIME_LIMIT),
        ("NODE_FAIL", BatchState.NODE_FAILED),
        ("A_LATER_STATE", BatchState.RUNNING),
    ],
)
def test_states_of_slurm(state: str, expected: BatchState) -> None:
    (job,) = parse_jobs(row(5, state, restarts=1) + "\n" + row(6, state, comment="somebody's"))
    assert (job.id, job.key, job.state, job.restarts) == ("5", "key-1", expected, 1)
    assert job.ended_at == (1795708170 if expected.ended else None)


def test_reasons_are_told_in_words_or_as_they_are() -> None:
    """Recorded from Slurm 22.05; a reason may have details."""
    recorded = ("Resources", "New", "None", "ReqNodeNotAvail, UnavailableNodes:n4")
    reasons = [next(parse_jobs(row(5, "PENDING", reason))).reason for reason in recorded]
    down = "waits for a node that is down or reserved, UnavailableNodes:n4"
    assert reasons == ["waits for free nodes", "New", "", down]
    (job,) = parse_jobs(row(5, "PENDING", "AssocMaxWallDurationPerJobLimit"))
    assert "lower max_duration" in job.reason


def test_gpus_of_nodes_that_are_down_are_not_free() -> None:
    lines = [
        f"{'gpu':<80}{count:<12}{'gpu:h100:8(S:0-1)':<200}{used:<300}{'2-00:00:00':<24}{state:<24}"
        for count, used, state in ((2, "gpu:h100:3(IDX:0-2)", "mixed"), (1, "gpu:h100:0", "down*"))
    ]
    (partition,) = parse_partitions("\n".join(lines))
    assert (partition.gpus_free, partition.gpus_total, partition.nodes) == (10, 24, 3)
    assert partition.limits == "at most 2-00:00:00"


@pytest.mark.parametrize("case", cases("slurm/gres"))
def test_gpus_of_a_machine_are_counted_by_type(case: dict[str, Any]) -> None:
    row = f"{'n1':<80}{'idle':<24}{case['gres']:<200}{case['used']:<300}{'none':<200}"
    (machine,) = parse_machines(row)
    assert (machine.gpu_type, [machine.gpus, machine.gpus_used]) == (case["kind"], case["counts"])


def test_a_forecast_is_a_time_or_a_refusal() -> None:
    text = "sbatch: Job 7 to start at %s using 4 processors on nodes n1 in partition gpu"
    start = int(time.time()) + 3600
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start))
    forecast = parse_forecast(text % soon, refused=False)
    assert (forecast.start, forecast.cpus) == (start, 4)
    far = parse_forecast(text % "2367-03-02T07:19:43", refused=False)
    assert (far.start, far.obstacle) == (None, "behind jobs without a time limit")
    refusal = "allocation failure: Requested node configuration is not available"
    parsed = parse_forecast(refusal, refused=True)
    assert parsed.refusal == "Requested node configuration is not available"


def test_the_accounting_remembers_jobs_and_who_cancelled_them() -> None:
    """Recorded from sacct of 22.05.8 with slurmdbd; a slot's job is found by its id."""
    output = """\
1|trainctl-a|CANCELLED by 65534|2026-11-26T15:58:53
2|trainctl-b|FAILED|2026-11-26T15:58:54
3|team-train-0|TIMEOUT|2026-11-26T15:59:22
4|trainctl-d|RUNNING|Unknown
5|other|NODE_FAIL|2026-11-26T15:58:55
"""
    keys = {"trainctl-a": "a", "trainctl-b": "b", "3": "c", "trainctl-d": "d"}
    jobs = parse_accounting(output, keys)
    assert [(job.key, job.state, job.reason, job.ended_at) for job in jobs.values()] == [
        ("a", BatchState.CANCELLED, "65534", 1795708733),
        ("b", BatchState.FAILED, "", 1795708734),
        ("c", BatchState.TIME_LIMIT, "", 1795708762),
        ("d", BatchState.RUNNING, "", None),
    ]
