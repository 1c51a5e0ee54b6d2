"""Sweeps and jobs that follow others, from the manifest to the end of the last run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

COMPLETED = "TRAINING_JOB_COMPLETED"

SWEEP = """\
project: {name: demo}
jobs:
  prep:
    runtime: {start_commands: ["while ! test -e GATE; do sleep 0.1; done"]}
  sweep:
    depends_on: [job.prep]
    matrix:
      lr: [1e-5, 1e-4]
      seed: [2, 10]
      exclude: [{lr: 1e-4, seed: 10}]
    max_parallel: 2
    priority: 3
    weights: ["file:./weights"]
    runtime:
      start_commands: ["echo lr ${{ matrix.lr }} seed ${{ matrix.seed }}"]
      checkpointing_config: {enabled: true}
  report:
    depends_on: [job.sweep]
    runtime: {start_commands: ["echo all done"]}
"""


@pytest.fixture
def gate(fresh: ProjectHarness) -> Path:
    """What the first job of the project waits for."""
    path = fresh.directory.parent / "gate"
    text = SWEEP.replace("GATE", str(path))
    fresh.write({"trainctl.yaml": text, "weights/model.bin": b"x" * 1000})
    return path


def jobs(project: ProjectHarness, *arguments: str) -> dict[str, dict[str, Any]]:
    """How jobs stand, by address."""
    return {job["address"]: job for job in project.json("status", *arguments)["jobs"]}


def test_a_sweep_from_beginning_to_end(fresh: ProjectHarness, gate: Path) -> None:
    """Apply returns while all of it is pending on the node, which carries on by itself; then nothing is left to plan."""
    plan = fresh.json("plan")
    assert [
        change["address"] for change in plan["resource_changes"] if change["type"] == "weights"
    ] == ["weights.sweep-0"]

    fresh.run("apply", "--auto-approve")

    pending = jobs(fresh)
    assert pending['job.sweep["lr=1e-5,seed=10"]']["waiting"] == "waits for job.prep to complete"
    assert pending["job.report"]["status"] == "TRAINING_JOB_PENDING"
    combinations = ["1e-5,seed=2", "1e-5,seed=10", "1e-4,seed=2"]
    members = [f'job.sweep["lr={combination}"]' for combination in combinations]
    specs = [json.loads(path.read_text()) for path in fresh.nodes.glob("*/runs/*/spec.json")]
    in_turn = [spec["address"] for spec in sorted(specs, key=lambda spec: spec["turn"]["index"])]
    assert in_turn == ["job.prep", *members, "job.report"]
    assert fresh.actions() == {}
    gate.touch()
    wait_for(lambda: {job["status"] for job in jobs(fresh).values()} == {COMPLETED}, 120)
    last = fresh.run("logs", 'job.sweep["lr=1e-4,seed=2"]').stdout
    assert last == "lr 1e-4 seed 2\n"
    assert fresh.actions() == {}
    assert "job.sweep (3)" in fresh.run("status").stdout


def test_the_name_of_a_sweep_means_all_of_it(fresh: ProjectHarness, gate: Path) -> None:
    """As a target, to run again, to stop, in logs; its code has to be that of one."""
    gate.touch()
    fresh.run("apply", "--auto-approve", "--target", "job.sweep", "--wait")
    assert set(fresh.actions()) == {"job.report"}
    assert set(fresh.actions("--replace", "job.sweep")) == {"job.report", *jobs(fresh, "sweep")}

    assert len(fresh.run("logs", "job.sweep").stdout.splitlines()) == 3
    asked = fresh.run("download", "job.sweep", code=64).stderr
    assert "job.sweep has 3 jobs" in asked

    gate.unlink()
    fresh.run("run", "prep", "--auto-approve")
    fresh.run("run", "job.sweep", "--auto-approve")
    assert fresh.run("stop", "job.sweep", code=64).stderr.count("with 3 live runs") == 1
    fresh.run("stop", "job.sweep", "--auto-approve")
    assert {job["status"] for job in jobs(fresh, "sweep").values()} == {"TRAINING_JOB_STOPPED"}
    fresh.run("stop", "prep", "--grace", "0")
