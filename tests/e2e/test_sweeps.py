"""Sweeps and jobs that follow others, from the manifest to the end of the last run."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

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
      seed: [1, 2, 10]
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
    return {one["address"]: one for one in project.json("status", *arguments)["jobs"]}


def turns(project: ProjectHarness) -> dict[str, int]:
    """Where the jobs of the one apply stand among those that wait."""
    specs = [json.loads(path.read_text()) for path in project.nodes.glob("*/runs/*/spec.json")]
    (_,) = {spec["turn"]["apply"] for spec in specs}
    return {spec["address"]: spec["turn"]["index"] for spec in specs}


def test_a_sweep_from_beginning_to_end(fresh: ProjectHarness, gate: Path) -> None:
    """Apply returns while all of it is pending on the node, which carries on by itself; then nothing is left to plan."""
    plan = fresh.json("plan")
    assert [one["address"] for one in plan["resource_changes"] if one["type"] == "weights"] == [
        "weights.sweep-0"
    ]

    fresh.run("apply", "--auto-approve")

    pending = jobs(fresh)
    assert pending['job.sweep["lr=1e-5,seed=10"]']["waiting"] == "waits for job.prep to complete"
    assert pending["job.report"]["status"] == "TRAINING_JOB_PENDING"
    combinations = ["1e-5,seed=1", "1e-5,seed=2", "1e-5,seed=10", "1e-4,seed=1", "1e-4,seed=2"]
    members = [f'job.sweep["lr={one}"]' for one in combinations]
    in_turn = turns(fresh)
    assert sorted(in_turn, key=in_turn.__getitem__) == ["job.prep", *members, "job.report"]
    assert fresh.actions() == {}
    gate.touch()
    wait_for(lambda: {one["status"] for one in jobs(fresh).values()} == {COMPLETED}, 120)
    last = fresh.run("logs", 'job.sweep["lr=1e-4,seed=2"]').stdout
    assert last == "lr 1e-4 seed 2\n"
    assert fresh.actions() == {}
    assert "job.sweep (5)" in fresh.run("status").stdout


@one_day_in(7)
def test_the_example_runs_and_leaves_nothing(fresh: ProjectHarness) -> None:
    """Data, six fits two at a time, the best of them; then destroy takes the node down, which never had weights."""
    example = Path(__file__).resolve().parents[2] / "examples" / "sweep"
    shutil.copytree(example, fresh.directory, dirs_exist_ok=True)

    fresh.run("apply", "--auto-approve", "--wait")

    assert fresh.run("logs", "best").stdout.startswith("6 runs; the best is lr 0.1, seed ")
    fresh.run("destroy", "--auto-approve")
    assert not list(fresh.nodes.iterdir())


@one_day_in(7)
def test_a_sweep_is_shown_by_its_values(fresh: ProjectHarness, gate: Path) -> None:
    """In the order of numbers; programs get the same jobs as a list."""
    gate.touch()
    fresh.run("apply", "--auto-approve", "--wait")

    table = fresh.run("status", "sweep").stdout.splitlines()

    assert table[0].split() == ["lr", "seed", "STATUS", "RUN", "RAN"]
    assert [line.split()[:3] for line in table[1:6]] == [
        *(["1e-5", seed, "completed"] for seed in ("1", "2", "10")),
        *(["1e-4", seed, "completed"] for seed in ("1", "2")),
    ]
    assert table[-1] == "job.sweep: 5 completed"
    listed = jobs(fresh, "job.sweep")
    assert listed['job.sweep["lr=1e-5,seed=10"]']["matrix"] == {"lr": "1e-5", "seed": "10"}
    assert len(listed) == 5


@one_day_in(5)
def test_the_name_of_a_sweep_means_all_of_it(fresh: ProjectHarness, gate: Path) -> None:
    """As a target, to run again, to stop; its log has to be that of one."""
    gate.touch()
    fresh.run("apply", "--auto-approve", "--target", "job.sweep", "--wait")
    assert set(fresh.actions()) == {"job.report"}
    assert set(fresh.actions("--replace", "job.sweep")) == {"job.report", *jobs(fresh, "sweep")}

    asked = fresh.run("logs", "job.sweep", code=64).stderr
    assert "job.sweep has 5 jobs" in asked

    gate.unlink()
    fresh.run("run", "prep", "--auto-approve")
    fresh.run("run", "job.sweep", "--auto-approve")
    assert fresh.run("stop", "job.sweep", code=64).stderr.count("with 5 live runs") == 1
    fresh.run("stop", "job.sweep", "--auto-approve")
    assert {one["status"] for one in jobs(fresh, "sweep").values()} == {"TRAINING_JOB_STOPPED"}
    fresh.run("stop", "prep", "--grace", "0")


@one_day_in(5)
def test_one_of_a_sweep_can_be_chosen(fresh: ProjectHarness, gate: Path) -> None:
    """With what it follows and nothing else, also without the quotes that a shell takes; while it is the only one the sweep's name is enough."""
    gate.touch()
    fresh.run("apply", "--auto-approve", "--wait", "--target", "sweep[lr=1e-5,seed=2]")

    assert set(jobs(fresh)) == {"job.prep", 'job.sweep["lr=1e-5,seed=2"]'}
    assert fresh.run("logs", "sweep").stdout == "lr 1e-5 seed 2\n"


@one_day_in(7)
def test_all_of_a_sweep_can_be_followed(fresh: ProjectHarness, gate: Path) -> None:
    """One after the other, to the end of the last."""
    gate.touch()
    said = fresh.run("run", "prep", "sweep", "--auto-approve", "--follow").stdout

    assert sorted(line for line in said.splitlines() if line.startswith("lr ")) == sorted(
        f"lr {lr} seed {seed}"
        for lr, seed in [("1e-5", 1), ("1e-5", 2), ("1e-5", 10), ("1e-4", 1), ("1e-4", 2)]
    )
    listed = fresh.json("history", "sweep")["entries"]
    assert {one["address"] for one in listed} == set(jobs(fresh, "sweep"))


@one_day_in(5)
def test_a_job_waits_for_one_that_failed(fresh: ProjectHarness, gate: Path) -> None:
    """It is left to a later apply, with the reason in the plan, in the result and for programs; then it goes on."""
    text = (fresh.directory / "trainctl.yaml").read_text()
    fresh.write({"trainctl.yaml": text.replace("while ! test", "exit 1; while ! test")})
    fresh.run("apply", "--auto-approve", "--wait", "--target", "job.prep", code=12)

    warned = [one["summary"] for one in fresh.json("plan")["diagnostics"]]
    told = fresh.events("apply", "--auto-approve", code=12)[-1]["data"]

    assert 'job.sweep["lr=1e-5,seed=1"] will wait: run 1 of job.prep failed' in warned
    assert told["left_alone"][0] == {
        "address": 'job.sweep["lr=1e-5,seed=1"]',
        "reason": "waits",
        "detail": "waits: run 1 of job.prep: failed",
    }
    assert told["skipped"] == ["job.report"]
    gate.touch()
    fresh.write({"trainctl.yaml": text})
    fresh.run("apply", "--auto-approve", "--wait")
    assert {one["status"] for one in jobs(fresh).values()} == {COMPLETED}


@one_day_in(7)
def test_a_job_on_another_cluster_is_left_to_a_later_apply(fresh: ProjectHarness) -> None:
    """Nobody on one node can tell when a run on another has completed."""
    gate = fresh.directory.parent / "gate"
    manifest = f"""\
clusters: {{here: {{provider: local}}, there: {{provider: local}}}}
jobs:
  first: {{cluster: here, runtime: {{start_commands: ["while ! test -e {gate}; do sleep 0.1; done"]}}}}
  second: {{cluster: there, depends_on: [job.first], runtime: {{start_commands: [echo second]}}}}
"""
    fresh.write({"trainctl.yaml": manifest})

    done = fresh.run("apply", "--auto-approve", code=12)

    assert "job.second: waits: run 1 of job.first is live on here/here-0" in done.stdout
    assert "1 waiting" in done.stdout
    gate.touch()
    wait_for(lambda: jobs(fresh)["job.first"]["status"] == COMPLETED, 60)
    fresh.run("apply", "--auto-approve", "--wait")
    assert jobs(fresh)["job.second"]["status"] == COMPLETED


@one_day_in(7)
def test_priority_reaches_a_run_that_waits(fresh: ProjectHarness, gate: Path) -> None:
    """Without a new run: the record and the node have the new one."""
    fresh.run("apply", "--auto-approve")
    text = (fresh.directory / "trainctl.yaml").read_text()
    fresh.write({"trainctl.yaml": text.replace("priority: 3", "priority: 7")})
    before = {address: one["run"] for address, one in jobs(fresh).items()}

    fresh.run("apply", "--auto-approve")

    assert {address: one["run"] for address, one in jobs(fresh).items()} == before
    orders = [
        json.loads(path.read_text())["priority"] for path in fresh.nodes.glob("*/runs/*/order.json")
    ]
    assert orders == [7] * 5
    fresh.run("destroy", "--auto-approve", "--stop-running")


@one_day_in(5)
def test_gpus_that_no_host_has_are_an_error_of_the_plan(fresh: ProjectHarness) -> None:
    """Naming what the host reports, in number and in kind."""
    tools = fresh.directory.parent / "tools"
    tools.mkdir()
    lines = "".join(f"{at}, GPU-{at}, NVIDIA A100-SXM4-80GB, 0, 0, 81920\\n" for at in range(2))
    (tools / "nvidia-smi").write_text(f'#!/bin/sh\nprintf "{lines}"\n')
    (tools / "nvidia-smi").chmod(0o755)
    fresh.variables["PATH"] = f"{tools}:{fresh.environment['PATH']}"
    manifest = """\
clusters: {{lab: {{provider: local, gpus: {declared}}}}}
jobs: {{sft: {{compute: {{accelerator: "{accelerator}"}}, runtime: {{start_commands: ["true"]}}}}}}
"""

    def problems(declared: int, accelerator: str) -> list[str]:
        text = manifest.format(declared=declared, accelerator=accelerator)
        fresh.write({"trainctl.yaml": text})
        found = fresh.json("plan", code=None)["diagnostics"]
        return [one["summary"] for one in found if one["severity"] == "error"]

    assert problems(2, "A100:2") == []
    assert problems(2, "A100:3") == ["each node needs 3 GPUs, but cluster.lab has 2"]
    assert problems(2, "H100") == [
        "each node needs 1 H100 GPU: lab/lab-0 has 2 × NVIDIA A100-SXM4-80GB"
    ]
    assert problems(3, "A100") == [
        "3 GPUs are declared for lab/lab-0, but it has 2 × NVIDIA A100-SXM4-80GB"
    ]


@one_day_in(7)
def test_the_name_of_a_sweep_means_the_checkpoints_of_all_of_it(fresh: ProjectHarness) -> None:
    """They are listed with their jobs, and each job resumes from its own; one that has none is named, and nothing is run."""
    text = """\
project: {name: demo}
jobs:
  s:
    matrix: {lr: [1, 2]}
    runtime:
      start_commands:
        - "find $BT_LOAD_CHECKPOINT_DIR/ -type f -exec cat {} +"
        - "mkdir $BT_CHECKPOINT_DIR/checkpoint-1 && echo from ${{ matrix.lr }} > $BT_CHECKPOINT_DIR/checkpoint-1/model.bin"
      checkpointing_config: {enabled: true}
"""
    fresh.write({"trainctl.yaml": text})
    fresh.run("apply", "--auto-approve", "--wait")
    found = fresh.json("checkpoints", "list", "s")["checkpoints"]
    table = fresh.run("checkpoints", "list", "s").stdout.splitlines()
    rows = fresh.run("checkpoints", "list", "s", "--format", "csv").stdout.splitlines()
    fresh.run("run", "s", "--resume", "--auto-approve", "--follow")

    names = ['job.s["lr=1"]', 'job.s["lr=2"]']
    assert [(one["job"], one["name"]) for one in found] == [(one, "checkpoint-1") for one in names]
    assert table[0].split()[:3] == ["JOB", "RUN", "CHECKPOINT"]
    assert [line.split()[0] for line in table[1:]] == ['s["lr=1"]', 's["lr=2"]']
    assert [one["job"] for one in csv.DictReader(rows)] == names
    logs = [fresh.run("logs", one).stdout for one in names]
    assert logs == ["from 1\n", "from 2\n"]
    assert "JOB" not in fresh.run("checkpoints", "list", "s[lr=1]").stdout
    fresh.write({"trainctl.yaml": text.replace("[1, 2]", "[1, 2, 3]")})
    refused = fresh.run("run", "s", "--resume", "--auto-approve", code=64).stderr
    assert 'job.s["lr=3"] is not in the state' in refused
