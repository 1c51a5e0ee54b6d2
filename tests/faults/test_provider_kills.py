"""Applies killed at random moments while they create machines or submit jobs: each exists once, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.test_aws import instances, leftovers, manifest
from tests.support.machines.slurm import SlurmCluster
from tests.support.projects.project import ProjectHarness
from tests.support.projects.project import project as new_project
from tests.support.servers.ec2 import Ec2Server

pytestmark = pytest.mark.long

KILLS = 4
"""How many applies each case kills."""
SLURM = """
project: {{name: team}}
clusters: {{hpc: {{provider: slurm, shared_dir: {shared}}}}}
jobs:
  train:
    code: .
    runtime: {{start_commands: ["echo {number}"]}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ProjectHarness]:
    with new_project(tmp_path) as project:
        yield project


def kill(project: ProjectHarness, chance: random.Random, seconds: float, *command: str) -> None:
    """Kill a command with its children at a random moment of so many seconds."""
    with project.start(*command) as process:
        time.sleep(chance.uniform(0.1, seconds))
        with suppress(ProcessLookupError):  # it was faster
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("case", range(3))
def test_killed_applies_leave_one_machine(
    project: ProjectHarness, ec2: Ec2Server, case: int
) -> None:
    """The apply that finishes uses what the killed ones created; a killed destroy is finished, too."""
    project.write({"trainctl.yaml": manifest(ec2)})
    project.variables |= ec2.environment
    chance = random.Random(case)
    for _ in range(KILLS):
        kill(project, chance, 6, "apply", "--auto-approve")
        assert len(instances(ec2)) <= 1

    project.run("apply", "--auto-approve", "--wait")

    assert len(instances(ec2)) == 1
    assert project.run("logs", "train").stdout == "trained\n"
    kill(project, chance, 6, "destroy", "--auto-approve")
    project.run("destroy", "--auto-approve")
    assert not any(leftovers(ec2).values()), leftovers(ec2)


@pytest.mark.parametrize("case", range(3))
def test_each_run_is_submitted_once(
    project: ProjectHarness, slurm: SlurmCluster, case: int
) -> None:
    """Each change is applied by one command that is killed and one that finishes it."""
    project.variables.update(slurm.variables)
    chance = random.Random(case)
    shared = slurm.shared_dir / f"kills-{case}"
    project.write({"trainctl.yaml": SLURM.format(shared=shared, number=0)})
    began = time.monotonic()
    project.run("apply", "--auto-approve")
    seconds = time.monotonic() - began
    project.run("apply", "--auto-approve", "--wait")
    before = set(slurm.jobs())
    for number in range(1, KILLS + 1):
        project.write({"trainctl.yaml": SLURM.format(shared=shared, number=number)})
        kill(project, chance, seconds, "apply", "--auto-approve")
        project.run("apply", "--auto-approve", "--wait", "--stop-running")
        assert project.run("logs", "train").stdout == f"{number}\n"
    comments = [job["comment"] for number, job in slurm.jobs().items() if number not in before]
    keys = Counter(comment.split()[0] for comment in comments)
    slurm.cancel_all()
    assert len(keys) >= KILLS
    assert set(keys.values()) == {1}
