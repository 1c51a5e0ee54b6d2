"""Applies killed at random moments while they submit to a real Slurm: every run is one job."""

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

from tests.support.machines.slurm import SlurmCluster
from tests.support.projects.project import ProjectHarness
from tests.support.projects.project import project as new_project
from tests.support.tiers import SEED, sample

MANIFEST = """
project: {{name: team}}
clusters: {{hpc: {{provider: slurm, shared_dir: {shared}}}}}
jobs:
  train:
    code: .
    runtime: {{start_commands: ["echo {number}"]}}
"""
KILLS = 5
"""How many applies each case kills."""


@pytest.fixture
def project(tmp_path: Path, slurm: SlurmCluster) -> Iterator[ProjectHarness]:
    """A project whose commands reach the cluster."""
    with new_project(tmp_path) as made:
        made.variables.update(slurm.variables)
        yield made
    slurm.cancel_all()


@pytest.mark.parametrize("case", sample(range(20), 0, 1))
def test_each_run_is_submitted_once(
    project: ProjectHarness, slurm: SlurmCluster, case: int
) -> None:
    """Each change is applied by one command that is killed and one that finishes it."""
    chance = random.Random(f"{SEED} {case}")
    shared = slurm.shared_dir / f"kills-{case}"
    project.write({"trainctl.yaml": MANIFEST.format(shared=shared, number=0)})
    began = time.monotonic()
    project.run("apply", "--auto-approve")
    seconds = time.monotonic() - began
    project.run("apply", "--auto-approve", "--wait")
    before = set(slurm.jobs())
    for number in range(1, KILLS + 1):
        project.write({"trainctl.yaml": MANIFEST.format(shared=shared, number=number)})
        with project.start("apply", "--auto-approve") as process:
            time.sleep(chance.uniform(0.1, seconds))
            with suppress(ProcessLookupError):  # it was faster
                os.killpg(process.pid, signal.SIGKILL)
        project.run("apply", "--auto-approve", "--wait", "--stop-running")
        assert project.run("logs", "train").stdout == f"{number}\n"
    comments = [job["comment"] for number, job in slurm.jobs().items() if number not in before]
    keys = Counter(comment.split()[0] for comment in comments)
    assert len(keys) >= KILLS
    assert set(keys.values()) == {1}
