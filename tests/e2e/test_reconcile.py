"""Carrying on what was approved, and nothing else."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, end_processes

PARTLY, INTERRUPTED = 12, 130
COMPLETED, LOST = "TRAINING_JOB_COMPLETED", "TRAINING_JOB_LOST"

MANIFEST = """\
clusters:
  left: {provider: local}
  right: {provider: local}
jobs:
  prep:
    cluster: left
    runtime: {start_commands: ["while ! test -e GATE; do sleep 0.1; done"]}
  train:
    cluster: right
    code: src
    depends_on: [job.prep]
    runtime: {start_commands: ["cat data.txt"]}
"""


@pytest.fixture
def gate(fresh: ProjectHarness) -> Path:
    """What the first of two jobs waits for; the other, on another cluster, can only be started by an operator."""
    path = fresh.directory.parent / "gate"
    fresh.write({"trainctl.yaml": MANIFEST.replace("GATE", str(path)), "src/data.txt": "old\n"})
    fresh.run("apply", "--auto-approve", code=PARTLY)
    return path


@contextmanager
def watching(project: ProjectHarness) -> Iterator[subprocess.Popen[str]]:
    """``reconcile`` in the background; ended by Ctrl-C, which is how it always ends."""
    process = project.start("reconcile", "--interval", "0.2s")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED


def status(project: ProjectHarness, address: str) -> str | None:
    """How a job's newest run stands; None where it has none."""
    jobs = {job["address"]: job["status"] for job in project.json("status")["jobs"]}
    return jobs.get(address)


def test_what_was_approved_is_carried_on(fresh: ProjectHarness, gate: Path) -> None:
    """The job that waited is started once the one before it has completed, with nobody asked."""
    assert status(fresh, "job.train") is None

    with watching(fresh):
        gate.touch()
        wait_for(lambda: status(fresh, "job.train") == COMPLETED, 60)

    assert fresh.run("logs", "job.train").stdout == "old\n"
    assert fresh.actions() == {}


def test_an_apply_that_waits_carries_on_what_it_had_to_leave(
    fresh: ProjectHarness, gate: Path
) -> None:
    """When the run that it follows has ended the other is started and followed, too; the exit code is that of all."""
    applying = fresh.start("apply", "--auto-approve", "--wait")
    wait_for(lambda: status(fresh, "job.prep") == "TRAINING_JOB_RUNNING", 60)
    gate.touch()
    output, _ = applying.communicate(timeout=120)

    assert applying.returncode == 0, output
    assert "job.train: run 1" in output
    assert status(fresh, "job.train") == COMPLETED


def test_what_nobody_approved_is_left_alone(fresh: ProjectHarness, gate: Path) -> None:
    """Neither a job that is new in the manifest nor one whose code changed since is begun."""
    manifest = fresh.directory / "trainctl.yaml"
    extra = '  extra: {cluster: left, runtime: {start_commands: ["true"]}}\n'
    manifest.write_text(manifest.read_text() + extra)
    fresh.write({"src/data.txt": "new\n"})
    gate.touch()
    wait_for(lambda: status(fresh, "job.prep") == COMPLETED, 60)

    result = fresh.run("reconcile", "--once")

    assert "created" not in result.stdout
    assert set(fresh.actions()) == {"job.train", "job.extra"}


def test_a_lost_run_is_an_attempt(fresh: ProjectHarness) -> None:
    """Another follows while ``retry`` of the job allows one more, and none if it allows one attempt."""
    job = "retry: {max_attempts: ATTEMPTS}, runtime: {start_commands: [sleep 600]}"
    jobs = {name: job.replace("ATTEMPTS", str(most)) for name, most in (("once", 1), ("again", 3))}
    text = "".join(f"  {name}: {{{values}}}\n" for name, values in jobs.items())
    fresh.write({"trainctl.yaml": f"jobs:\n{text}"})
    fresh.run("apply", "--auto-approve")
    addresses = ("job.once", "job.again")
    wait_for(lambda: {status(fresh, address) for address in addresses} == {"TRAINING_JOB_RUNNING"})
    end_processes(str(fresh.nodes))
    wait_for(lambda: {status(fresh, address) for address in addresses} == {LOST})

    fresh.run("reconcile", "--once")

    assert [fresh.json("status", address)["number"] for address in addresses] == [1, 2]
    fresh.run("stop", "--all")
