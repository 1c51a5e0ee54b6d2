"""Secrets that are declared `persist`: the plan says so, a queued run goes on after a reboot with nobody's values at hand, and nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.node_program.nodes import is_alive, wait_for
from tests.support.projects.project import ProjectHarness

OLD, NEW = "Wm3xR7nD5kP2-old", "Wm3xR7nD5kP2-new"
SAYS = "(secret corp is stored on the node's disk until the run starts)"
MANIFEST = """\
secrets: {corp: {from: env, name: CORP, persist: true, version: VERSION}}
jobs:
  prep: {runtime: {start_commands: ["while ! test -e WAITS; do sleep 0.05; done"]}}
  fit:
    depends_on: [job.prep]
    runtime:
      start_commands: ["printf 'got %s' \\"${TOKEN#*-}\\""]
      environment_variables: {TOKEN: {secret: corp}}
"""


def declare(work: ProjectHarness, version: int) -> Path:
    """A run that waits for another one's end, which is when the file is there."""
    gate = work.directory.parent / "go"
    text = MANIFEST.replace("WAITS", str(gate)).replace("VERSION", str(version))
    work.write({"trainctl.yaml": text})
    return gate


def holders(work: ProjectHarness, value: str) -> list[Path]:
    """The files that hold a value, of nodes, state and all else that trainctl has written."""
    top = work.directory.parent
    files = [one for one in top.rglob("*") if one.is_file() and not one.is_symlink()]
    return [one for one in files if value.encode() in one.read_bytes()]


def lose_supervisor(work: ProjectHarness, run: str) -> None:
    """Kill it, as a reboot does."""
    for spec in work.nodes.glob("*/runs/*/spec.json"):
        if json.loads(spec.read_text())["id"] == run:
            newest = max(spec.parent.glob("claim.*"), key=lambda one: int(one.suffix[1:]))
            pid = json.loads(newest.read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_for(partial(_is_dead, pid))


def _is_dead(pid: int) -> bool:
    return not is_alive(pid)


def ended(work: ProjectHarness, address: str) -> dict[str, Any]:
    """The run of a job, once it has ended."""

    def look() -> dict[str, Any] | None:
        status: dict[str, Any] = work.json("status", address)
        return status if status["ended_at"] else None

    return wait_for(look, 60)


def test_a_run_goes_on_where_nobody_has_its_secret(fresh: ProjectHarness) -> None:
    """The plan says that it is kept; with its supervisor killed and the variable gone the same run goes on with the old value, in one private file until it begins."""
    gate = declare(fresh, 1)
    fresh.variables["CORP"] = OLD
    planned = fresh.run("plan").stdout
    fresh.run("apply", "--auto-approve")
    run = fresh.json("status", "job.fit")["run"]
    kept = [(one.name, oct(one.stat().st_mode & 0o777)) for one in holders(fresh, OLD)]
    lose_supervisor(fresh, run)
    del fresh.variables["CORP"]

    told = fresh.run("status").stdout
    changes = fresh.actions()
    fresh.run("reconcile", "--once")
    again = fresh.run("status").stdout
    gate.touch()
    after = ended(fresh, "job.fit")

    assert SAYS in planned
    assert kept == [("secrets.json", "0o600")]
    assert "waiting for apply or reconcile to resume it" in told
    assert changes == {}
    assert "waits for job.prep to complete" in again
    assert (after["run"], after["status"]) == (run, "TRAINING_JOB_COMPLETED")
    assert "got old" in fresh.run("logs", "job.fit").stdout
    assert holders(fresh, OLD) == []
