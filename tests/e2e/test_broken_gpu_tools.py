"""Hosts whose ``nvidia-smi`` fails: no job that can do without GPUs is stopped by it, and one that can't is told in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

MISMATCH = """\
echo 'Failed to initialize NVML: Driver/library version mismatch'
echo 'NVML library version: 535.161'
exit 18
"""
NONE = "echo 'No devices were found'; exit 6\n"
SAID = "nvidia-smi on lab/lab-0 failed with exit code 18: Failed to initialize NVML: Driver/library version mismatch NVML library version: 535.161"
MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: local, gpus: 2}}
jobs: {sft: {compute: COMPUTE, runtime: {start_commands: ["echo gpus $BT_NUM_GPUS visible [${CUDA_VISIBLE_DEVICES-all}]"]}}}
"""


@pytest.fixture
def tool(fresh: ProjectHarness) -> Path:
    """The machine's ``nvidia-smi``."""
    tools = fresh.directory.parent / "tools"
    tools.mkdir()
    fresh.variables["PATH"] = f"{tools}:{fresh.environment['PATH']}"
    return tools / "nvidia-smi"


def fails(tool: Path, body: str) -> None:
    """From now on it does this."""
    tool.write_text(f"#!/bin/sh\n{body}")
    tool.chmod(0o755)


def problems(project: ProjectHarness, compute: str, *, exits: int) -> list[tuple[str, str, str]]:
    """The diagnostics of a plan."""
    project.write({"trainctl.yaml": MANIFEST.replace("COMPUTE", compute)})
    found: dict[str, Any] = project.json("plan", code=exits)
    return [(one["code"], one["summary"], one["detail"]) for one in found["diagnostics"]]


def log_of(project: ProjectHarness) -> str:
    """What the run printed, once it has completed."""
    status = wait_for(lambda: _ended(project), 60)
    assert status["status"] == "TRAINING_JOB_COMPLETED", status
    return project.run("logs", "job.sft").stdout


def _ended(project: ProjectHarness) -> dict[str, Any] | None:
    (status,) = project.json("status")["jobs"]
    ended = status["status"].rpartition("_")[2] in ("COMPLETED", "FAILED", "LOST", "STOPPED")
    return status if ended else None


@one_day_in(5)
def test_a_job_that_names_no_gpus_runs_without_them(fresh: ProjectHarness, tool: Path) -> None:
    """The plan warns; the job sees none of what may be there, as nobody could claim it."""
    fails(tool, MISMATCH)

    ((code, summary, _),) = problems(fresh, "{}", exits=0)
    fresh.run("apply", "--auto-approve")

    assert (code, summary) == ("gpu-query-failed", SAID)
    assert "gpus 0 visible []\n" in log_of(fresh)


def test_a_job_that_wants_gpus_is_told_why_there_are_none(
    fresh: ProjectHarness, tool: Path
) -> None:
    """In the plan, though they are declared, and not by a run that can't be deployed."""
    fails(tool, MISMATCH)

    assert problems(fresh, "{accelerator: 'H100:2'}", exits=1) == [
        ("too-few-gpus", "each node needs 2 GPUs, but cluster.lab has 0", SAID)
    ]


@one_day_in(5)
def test_no_devices_are_no_problem(fresh: ProjectHarness, tool: Path) -> None:
    """A tool that finds nothing is as good as none: what is declared holds."""
    fails(tool, NONE)

    assert problems(fresh, "{}", exits=0) == []
    fresh.run("apply", "--auto-approve")

    assert fresh.json("nodes")["nodes"][0]["reason"] is None
    assert "gpus 2 visible [0,1]\n" in log_of(fresh)
