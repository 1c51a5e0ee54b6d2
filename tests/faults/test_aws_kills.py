"""Applies killed at random moments while EC2 creates their machine: never two, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.test_aws import MANIFEST, instances, leftovers
from tests.support.projects.project import ProjectHarness
from tests.support.projects.project import project as new_project
from tests.support.servers.ec2 import Ec2Server
from tests.support.tiers import SEED, sample

KILLS = 4
"""How many applies each case kills before one finishes."""
_SECONDS = 6.0
"""About the time that an apply takes."""


@pytest.fixture
def project(tmp_path: Path, ec2: Ec2Server) -> Iterator[ProjectHarness]:
    """A project with a job on one machine."""
    with new_project(tmp_path) as made:
        made.write({"trainctl.yaml": MANIFEST.format(port=ec2.ssh_port)})
        made.variables |= ec2.environment
        yield made


@pytest.mark.parametrize("case", sample(range(50), 0, 1))
def test_killed_applies_leave_one_machine(
    project: ProjectHarness, ec2: Ec2Server, case: int
) -> None:
    """The apply that finishes uses what the killed ones created; a killed destroy is finished, too."""
    chance = random.Random(f"{SEED} {case}")
    for _ in range(KILLS):
        kill(project, chance, "apply", "--auto-approve")
        assert len(instances(ec2)) <= 1

    project.run("apply", "--auto-approve", "--wait")

    assert len(instances(ec2)) == 1
    assert project.run("logs", "train").stdout == "trained\n"
    assert len(project.json("history")["entries"]) > 0
    kill(project, chance, "destroy", "--auto-approve")
    project.run("destroy", "--auto-approve")
    assert not any(leftovers(ec2).values()), leftovers(ec2)


def kill(project: ProjectHarness, chance: random.Random, *command: str) -> None:
    """Kill a command with its children at a random moment."""
    with project.start(*command) as process:
        time.sleep(chance.uniform(0.2, _SECONDS))
        with suppress(ProcessLookupError):  # it was faster
            os.killpg(process.pid, signal.SIGKILL)
