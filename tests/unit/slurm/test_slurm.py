"""What is submitted to Slurm, and what its commands print."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.plugin_api.provider import ClusterSettings
from trainctl.plugin_api.scheduler import BatchRequest, BatchState
from trainctl_slurm.queries import (
    parse_accounting,
    parse_forecast,
    parse_jobs,
    parse_machines,
    parse_partitions,
    parse_time_limits,
)
from trainctl_slurm.submission import hosts, order, sbatch_arguments, script, with_margin

REQUEST = BatchRequest("key-1", "train", "job.train run 1 (abc)", ("python3", "a b"), "{}", "/log")


def cluster(**settings: object) -> ClusterSettings:
    return ClusterSettings("hpc", {"shared_dir": "/shared", **settings})  # type: ignore[dict-item]


def options(request: BatchRequest, **settings: object) -> list[str]:
    words = sbatch_arguments(cluster(**settings), request)
    return words[words.index("sbatch") :]


def row(number: int, state: str, reason: str = "None", restarts: int = 0, comment: str = "") -> str:
    comment = comment or "trainctl:key-1 job.train run 1 (abc)"
    end = "2026-11-26T15:49:30"
    columns = ((24, number), (24, state), (12, restarts), (80, reason), (400, "n[1-2]"), (24, end), (600, comment))  # fmt: skip
    return "".join(f"{value:<{width}}" for width, value in columns)


def test_a_run_becomes_the_options_and_the_script_of_one_job() -> None:
    request = BatchRequest(
        "key-1", "train", "job.train run 1 (abc)", (), "", "/log", nodes=2, gpus=4, gpu_kind="H100", cpus=8,
        memory=2**30 + 1, time_limit=3601, priority=-5, after=("7", "8"), slot="sweep-0",
    )  # fmt: skip
    given = options(request, partition="gpu", account="lab", sbatch={"exclusive": True, "tmp": 9})
    expected = (
        "--exclusive", "--tmp=9", "--job-name=sweep-0", "--comment=trainctl:key-1 job.train run 1 (abc)", "--nodes=2",
        "--gres=gpu:h100:4", "--partition=gpu", "--account=lab", "--cpus-per-task=8", "--mem=1025M", "--time=61",
        "--nice=5", "--dependency=afterok:7:8,singleton", "--kill-on-invalid-dep=yes", "--requeue",
    )  # fmt: skip
    assert set(expected) <= set(given)
    assert "| srun --kill-on-bad-exit=0 python3 'a b'\n" in script(REQUEST)


@pytest.mark.parametrize(
    ("gpus", "gres", "partition"),
    [
        ({}, "gpu:h100:1", "gpu"),
        ({"H100": {"gres": "nvidia_h100"}}, "gpu:nvidia_h100:1", "gpu"),
        ({"H100": {"partition": "big"}}, "gpu:1", "big"),
    ],
)
def test_gpu_types_become_gres_types_or_partitions(
    gpus: dict[str, object], gres: str, partition: str
) -> None:
    request = BatchRequest("k", "n", "l", (), "", "", gpus=1, gpu_kind="H100")
    given = options(request, partition="gpu", gpus=gpus)
    assert {f"--gres={gres}", f"--partition={partition}"} <= set(given)


def test_the_login_host_is_a_host_with_the_shared_directory() -> None:
    settings = hosts(cluster(login={"name": "login.example.com", "user": "u"})).settings
    assert settings["hosts"] == [
        {"address": "login.example.com", "name": "login", "user": "u", "dir": "/shared", "gpus": 0}
    ]


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


@pytest.mark.parametrize(("partition", "minutes"), [("", 40), ("gpu,short", 35)])
def test_a_job_has_its_margin_as_far_as_the_partition_allows(partition: str, minutes: int) -> None:
    """Of the default partition without a name; those in which it does not fit do not count."""
    limits = parse_time_limits(
        "gpu* 2-00:00:00\nshort 35:00\ndebug 29:00\nlong infinite\n", partition
    )
    timed = with_margin(replace(REQUEST, time_limit=1800, time_margin=600), limits)
    assert timed.time_limit == minutes * 60


def test_a_forecast_is_a_time_or_a_refusal() -> None:
    text = "sbatch: Job 7 to start at %s using 4 processors on nodes n1 in partition gpu"
    start = int(time.time()) + 3600
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start))
    found = parse_forecast(text % soon, refused=False)
    assert (found.start, found.cpus) == (start, 4)
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


def test_the_order_of_a_pending_job_is_its_name_and_nice() -> None:
    """A name of its own is no limit."""
    lower = replace(REQUEST, priority=-7, slot="team-train-3")
    assert order(lower) == ["jobname=team-train-3", "nice=7"]
    assert order(replace(REQUEST, priority=2)) == ["jobname=trainctl-key-1", "nice=0"]
