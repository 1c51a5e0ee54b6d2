"""Runs of a Slurm with accounting: who cancelled them, and what the controller has forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.slurm_accounting import (
    OPERATOR,
    AccountedSlurmCluster,
    accounted_slurm_cluster,
)
from tests.support.projects.project import ProjectHarness

pytestmark = pytest.mark.long

MANIFEST = """
project: {name: team}
clusters: {hpc: {provider: slurm, shared_dir: %s}}
jobs:
  train:
    code: .
    runtime: {start_commands: ["sleep 300"]}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[AccountedSlurmCluster]:
    with accounted_slurm_cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("forgotten", [False, True])
def test_another_user_cancels_a_run(
    fresh: ProjectHarness, slurm: AccountedSlurmCluster, tmp_path: Path, forgotten: bool
) -> None:
    """Status names the user and the time, also if the controller has forgotten the job."""
    fresh.variables.update(slurm.variables)
    fresh.forks = False
    fresh.write({"trainctl.yaml": MANIFEST % (slurm.shared_dir / tmp_path.name)})
    fresh.run("apply", "--auto-approve")
    job = max(slurm.jobs())
    slurm.await_state(job, "RUNNING")
    began = time.time()
    slurm("setpriv", f"--reuid={OPERATOR}", "--clear-groups", "scancel", str(job))
    slurm.await_state(job, "CANCELLED")
    if forgotten:
        slurm.await_that(lambda: "CANCELLED" in accounted(slurm, job), "sacct has no end")
        slurm.forget_jobs()
    status = fresh.json("status", "job.train")
    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert status["error"] == f"its job was cancelled by {OPERATOR}"
    assert began - 2 < time.mktime(time.strptime(status["ended_at"][:19], "%Y-%m-%dT%H:%M:%S"))


def accounted(slurm: AccountedSlurmCluster, job: int) -> str:
    return slurm("sacct", "-X", "--noheader", f"--jobs={job}", "--format=State%40")
