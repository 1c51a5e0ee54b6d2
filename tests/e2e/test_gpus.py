"""Jobs that want GPUs: of hosts whose ``nvidia-smi`` fails, and GPUs that other runs have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

MISMATCH = """\
#!/bin/sh
echo 'Failed to initialize NVML: Driver/library version mismatch'
echo 'NVML library version: 535.161'
exit 18
"""
ERROR = "nvidia-smi on lab/lab-0 failed with exit code 18: Failed to initialize NVML: Driver/library version mismatch NVML library version: 535.161"
CLUSTER = """\
project: {name: demo}
clusters: {lab: {provider: local, gpus: 2}}
"""
SHOW = """\
jobs: {sft: {compute: COMPUTE, runtime: {start_commands: ["echo gpus $BT_NUM_GPUS visible [${CUDA_VISIBLE_DEVICES-all}]"]}}}
"""
TWO = """\
jobs:
  first: {compute: {accelerator: "H100:2"}, runtime: {start_commands: ["while test -e GATE; do sleep 0.1; done"]}}
  second: {compute: {accelerator: "H100:1"}, runtime: {start_commands: ["true"]}}
"""


@pytest.fixture
def gpus(fresh: ProjectHarness) -> FakeNvidiaGpus:
    gpus = FakeNvidiaGpus.make(fresh.directory.parent / "tools", 2)
    fresh.variables["PATH"] = f"{gpus.tools}:{fresh.environment['PATH']}"
    return gpus


def problems(project: ProjectHarness, compute: str, *, exits: int) -> list[tuple[str, str, str]]:
    project.write({"trainctl.yaml": CLUSTER + SHOW.replace("COMPUTE", compute)})
    diagnostics = project.json("plan", code=exits)["diagnostics"]
    return [(row["code"], row["summary"], row["detail"]) for row in diagnostics]


def test_only_jobs_that_want_gpus_fail_with_a_broken_driver(
    fresh: ProjectHarness, gpus: FakeNvidiaGpus
) -> None:
    """In the plan; a job that names none runs and sees none, as none could be claimed."""
    (gpus.tools / "nvidia-smi").write_text(MISMATCH)

    wanting = problems(fresh, "{accelerator: 'H100:2'}", exits=1)
    ((code, summary, _),) = problems(fresh, "{}", exits=0)
    fresh.run("apply", "--auto-approve", "--wait")

    assert wanting == [
        ("too-few-gpus", "each node needs 2 GPUs, but cluster.lab has 0", ERROR),
    ]
    assert (code, summary) == ("gpu-query-failed", ERROR)
    assert "gpus 0 visible []\n" in fresh.run("logs", "job.sft").stdout


def test_status_and_apply_name_the_process_that_has_the_gpus(
    fresh: ProjectHarness, gpus: FakeNvidiaGpus
) -> None:
    gate: Path = fresh.directory.parent / "gate"
    gate.touch()
    fresh.write({"trainctl.yaml": CLUSTER + TWO.replace("GATE", str(gate))})
    fresh.run("apply", "--auto-approve", "--target", "job.first")
    waiting = "pending: waits for 1 of 2 GPUs, taken by PID "

    words = ("apply", "--auto-approve", "--target", "job.second", "--wait", "--format", "json")
    with fresh.start(*words) as applying:
        assert applying.stdout is not None
        line = next((line for line in applying.stdout if waiting in line), "nothing")
        wait_for(lambda: waiting in fresh.run("status").stdout)
        gate.unlink()
        applying.communicate(timeout=120)

    assert json.loads(line)["address"] == "job.second"
    assert applying.returncode == 0
