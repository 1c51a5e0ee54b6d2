"""What is submitted to Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainctl.plugin_api.provider import ClusterSettings
from trainctl.plugin_api.scheduler import BatchRequest
from trainctl_slurm.queries import (
    parse_time_limits,
)
from trainctl_slurm.submission import hosts, order, sbatch_arguments, script, with_margin

REQUEST = BatchRequest("key-1", "train", "job.train run 1 (abc)", ("python3", "a b"), "{}", "/log")


def cluster(**settings: object) -> ClusterSettings:
    return ClusterSettings("hpc", {"shared_dir": "/shared", **settings})  # type: ignore[dict-item]


def options(request: BatchRequest, **settings: object) -> list[str]:
    words = sbatch_arguments(cluster(**settings), request)
    return words[words.index("sbatch") :]


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


@pytest.mark.parametrize(("partition", "minutes"), [("", 40), ("gpu,short", 35)])
def test_a_job_has_its_margin_as_far_as_the_partition_allows(partition: str, minutes: int) -> None:
    """Of the default partition without a name; those in which it does not fit do not count."""
    limits = parse_time_limits(
        "gpu* 2-00:00:00\nshort 35:00\ndebug 29:00\nlong infinite\n", partition
    )
    timed = with_margin(replace(REQUEST, time_limit=1800, time_margin=600), limits)
    assert timed.time_limit == minutes * 60


def test_the_order_of_a_pending_job_is_its_name_and_nice() -> None:
    """A name of its own is no limit."""
    lower = replace(REQUEST, priority=-7, slot="team-train-3")
    assert order(lower) == ["jobname=team-train-3", "nice=7"]
    assert order(replace(REQUEST, priority=2)) == ["jobname=trainctl-key-1", "nice=0"]
