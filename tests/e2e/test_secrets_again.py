"""Runs that had their secrets and lost them with their supervisor, as in a reboot, before they began: given them again they go on."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import is_alive, wait_for
from tests.support.projects.project import ProjectHarness

OLD, NEW = "Kd4mP9sL1yB6-old", "Kd4mP9sL1yB6-new"
MANIFEST = """\
secrets: {corp: {from: env, name: CORP}}
jobs:
  fit:
    matrix: {n: [1, 2]}
    max_parallel: 1
    runtime:
      start_commands: ["while ! test -e WAITS; do sleep 0.05; done", "printf %s \\"$TOKEN\\" | sha256sum"]
      environment_variables: {TOKEN: {secret: corp}}
"""


@pytest.fixture
def waits(tmp_path: Path) -> Path:
    """What the first run waits for, and the second behind it."""
    return tmp_path / "go"


@pytest.fixture
def queued(fresh: ProjectHarness, waits: Path) -> Iterator[ProjectHarness]:
    """Two runs with a secret, of which one goes on and the other waits in the queue."""
    fresh.variables["CORP"] = OLD
    fresh.write({"trainctl.yaml": MANIFEST.replace("WAITS", str(waits))})
    fresh.run("apply", "--auto-approve")
    yield fresh
    waits.touch()


def lose_supervisor(work: ProjectHarness) -> dict[str, Any]:
    """Kill that of the run in the queue, as a reboot does; the run as it is told before."""
    (pending,) = [one for one in jobs(work) if one["status"] == "TRAINING_JOB_PENDING"]
    for spec in work.nodes.glob("local-0/runs/*/spec.json"):
        if json.loads(spec.read_text())["id"] == pending["run"]:
            for claim in spec.parent.glob("claim.*"):
                pid = json.loads(claim.read_text())["pid"]
                os.kill(pid, signal.SIGKILL)
                wait_for(partial(is_dead, pid))
    return pending


def is_dead(pid: int) -> bool:
    return not is_alive(pid)


def jobs(work: ProjectHarness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = work.json("status")["jobs"]
    return found


def ended(work: ProjectHarness, address: str) -> dict[str, Any]:
    """The run of a job, once it has ended."""

    def look() -> dict[str, Any] | None:
        status: dict[str, Any] = work.json("status", address)
        return status if status["ended_at"] else None

    return wait_for(look, 60)


def test_a_run_waits_for_secrets_and_goes_on_with_those_that_are_pushed(
    queued: ProjectHarness, waits: Path
) -> None:
    """It says what it waits for and is planned as it is; pushed, the same run waits in its queue again, and runs with today's value."""
    lost = lose_supervisor(queued)
    told = queued.run("status", "fit").stdout
    changed = queued.actions()
    queued.variables["CORP"] = NEW

    pushed = queued.run("secrets", "push").stdout
    again = queued.run("secrets", "push").stdout
    waits.touch()
    after = ended(queued, lost["address"])

    assert "pending: waits for secrets" in told
    assert changed == {}
    assert f"{lost['address']}: run 1 ({lost['run']}) pending: waits for one of 1 slots" in pushed
    assert again == "No runs wait for secrets.\n"
    assert (after["run"], after["status"]) == (lost["run"], "TRAINING_JOB_COMPLETED")
    logs = queued.run("logs", lost["address"]).stdout
    assert hashlib.sha256(NEW.encode()).hexdigest() in logs
    assert NEW not in pushed + told
    held = [
        one for one in queued.nodes.rglob("*") if one.is_file() and NEW.encode() in one.read_bytes()
    ]
    assert held == []
