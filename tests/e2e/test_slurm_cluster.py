"""The Slurm cluster of the tests: jobs over nodes, preemption, and daemons that fail and return."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.slurm import SlurmCluster


@pytest.fixture(autouse=True)
def no_jobs_left(slurm: SlurmCluster) -> Iterator[None]:
    """Free all nodes after each test."""
    yield
    slurm.cancel_all()


def test_a_job_runs_on_two_nodes_with_gpus(slurm: SlurmCluster) -> None:
    step = "echo $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES > two-$SLURM_PROCID"
    job = slurm.sbatch(f"srun sh -c '{step}'", "--nodes=2", "--gres=gpu:2")
    assert slurm.await_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    written = [(slurm.shared_dir / f"two-{rank}").read_text() for rank in range(2)]
    assert written == ["0 n1 0,1\n", "1 n2 0,1\n"]


def test_an_urgent_job_requeues_another(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("sleep 300", "--nodes=4", "--gres=gpu:2")
    slurm.await_state(job, "RUNNING")
    urgent = slurm.sbatch("sleep 1", "--partition=urgent", "--gres=gpu:2")
    assert slurm.await_state(urgent, "RUNNING", "COMPLETED")
    slurm.await_state(job, "PENDING")
    slurm.await_state(job, "RUNNING")
    assert slurm.jobs()[job]["restart_cnt"] == 1
    assert slurm.state(urgent) == "COMPLETED"


def test_jobs_outlive_the_controller(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("while [ ! -e go-on ]; do sleep 0.1; done", "--gres=gpu:1")
    slurm.await_state(job, "RUNNING")
    slurm.stop_controller()
    try:
        failed = subprocess.run(["squeue"], env=slurm.environment, capture_output=True, check=False)
        assert b"Unable to contact slurm controller" in failed.stderr
    finally:
        slurm.start_controller()
    assert slurm.state(job) == "RUNNING"
    (slurm.shared_dir / "go-on").touch()
    slurm.await_state(job, "COMPLETED")


def test_a_job_of_a_killed_node_is_requeued(slurm: SlurmCluster) -> None:
    # Slurm does not find the detached process; killing the node does.
    script = "setsid sleep 4321 & echo $! > detached; sleep 300"
    job = slurm.sbatch(script, "--nodelist=n4", "--gres=gpu:2")
    slurm.await_state(job, "RUNNING")
    detached = slurm.shared_dir / "detached"
    slurm.await_that(lambda: detached.exists() and bool(detached.read_text()), "job is not running")
    process = Path("/proc", detached.read_text().strip(), "cmdline")
    slurm.kill_node("n4", report=True)
    assert not process.exists() or not process.read_bytes()
    slurm.await_state(job, "PENDING")
    slurm.restart_node("n4")
    slurm.await_state(slurm.sbatch("true", "--nodelist=n4"), "COMPLETED")


@pytest.mark.skipif(os.getuid() != 0, reason="submits jobs of another user")
def test_root_cancels_a_job_of_another_user(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("id -un > user; sleep 300", "--uid=nobody")
    slurm.await_state(job, "RUNNING")
    slurm("scancel", str(job))
    assert slurm.await_state(job, "CANCELLED")
    assert slurm.jobs()[job]["user_name"] == "nobody"
