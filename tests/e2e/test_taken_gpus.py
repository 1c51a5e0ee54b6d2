"""What a user is told of runs that wait for GPUs: where, and who has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: local, gpus: 2, nodes: NODES}}
jobs:
  first:
    compute: {accelerator: "H100:2"}
    runtime: {start_commands: ["while test -e GATE; do sleep 0.1; done"]}
  second:
    compute: {accelerator: "H100:1", node_count: NODES}
    runtime: {start_commands: ["true"]}
"""


@pytest.fixture
def gate(fresh: ProjectHarness) -> Iterator[Path]:
    """What the job that has both GPUs of the machine waits for to go."""
    gpus = FakeNvidiaGpus.make(fresh.directory.parent / "tools", 2)
    fresh.variables["PATH"] = f"{gpus.tools}:{fresh.environment['PATH']}"
    path = fresh.directory.parent / "gate"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def write(project: ProjectHarness, gate: Path, count: int) -> None:
    """The manifest with so many nodes."""
    text = MANIFEST.replace("NODES", str(count)).replace("GATE", str(gate))
    project.write({"trainctl.yaml": text})


def waiting(project: ProjectHarness, job: str) -> str:
    """Why a job's run waits, for programs."""
    found = {one["address"]: one["waiting"] for one in project.json("status")["jobs"]}
    return str(found[job])


@one_day_in(5)
def test_status_and_apply_name_the_process_that_has_the_gpus(
    fresh: ProjectHarness, gate: Path
) -> None:
    """In the line of the run that waits."""
    write(fresh, gate, 1)
    fresh.run("apply", "--auto-approve", "--target", "job.first")
    told = "waits for 1 of 2 GPUs, taken by PID "

    words = ("apply", "--auto-approve", "--target", "job.second", "--wait", "--format", "json")
    with fresh.start(*words) as applying:
        assert applying.stdout is not None
        heard = next((line for line in applying.stdout if f"pending: {told}" in line), "nothing")
        shown = fresh.run("status").stdout
        gate.unlink()
        applying.communicate(timeout=120)

    assert json.loads(heard)["address"] == "job.second"
    assert f"pending: {told}" in shown
    assert applying.returncode == 0


@one_day_in(7)
def test_a_run_on_several_nodes_names_the_node(fresh: ProjectHarness, gate: Path) -> None:
    """Of the rank that can't have its GPUs, whichever rank tells it."""
    write(fresh, gate, 2)
    fresh.run("apply", "--auto-approve", "--target", "job.first")

    fresh.run("apply", "--auto-approve", "--target", "job.second")

    told = wait_for(lambda: next((w for w in [waiting(fresh, "job.second")] if "taken" in w), None))
    assert " of 2 GPUs on lab/lab-" in told
    gate.unlink()
