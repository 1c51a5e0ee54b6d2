"""Queued runs that lose their supervisor before they start, as in a reboot: with `persist` nobody gives them their secrets again."""

from __future__ import annotations

import hashlib
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
secrets: {corp: {from: env, name: CORP, persist: true, version: 1}}
jobs:
  prep: {runtime: {start_commands: ["while ! test -e WAITS; do sleep 0.05; done"]}}
  fit:
    depends_on: [job.prep]
    runtime:
      start_commands: ["printf 'got %s' \\"${TOKEN#*-}\\""]
      environment_variables: {TOKEN: {secret: corp}}
"""


def holders(work: ProjectHarness, value: str) -> list[Path]:
    """The files that hold a value, of nodes, state and all else that trainctl has written."""
    top = work.directory.parent
    files = [path for path in top.rglob("*") if path.is_file() and not path.is_symlink()]
    return [file for file in files if value.encode() in file.read_bytes()]


def is_dead(pid: int) -> bool:
    return not is_alive(pid)


def lose_supervisor(work: ProjectHarness, run: str) -> None:
    """Kill it, as a reboot does."""
    for spec in work.nodes.glob("*/runs/*/spec.json"):
        if json.loads(spec.read_text())["id"] == run:
            newest = max(spec.parent.glob("claim.*"), key=lambda path: int(path.suffix[1:]))
            pid = json.loads(newest.read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_for(partial(is_dead, pid))


def ended(work: ProjectHarness, address: str) -> dict[str, Any]:
    """The run of a job, once it has ended."""

    def look() -> dict[str, Any] | None:
        status: dict[str, Any] = work.json("status", address)
        return status if status["ended_at"] else None

    return wait_for(look, 60)


def test_a_run_goes_on_where_nobody_has_its_secret(fresh: ProjectHarness) -> None:
    """The plan says that it is kept; with its supervisor killed and the variable gone the same run goes on with the old value, in one private file until it begins."""
    gate = fresh.directory.parent / "go"
    fresh.write({"trainctl.yaml": MANIFEST.replace("WAITS", str(gate))})
    fresh.variables["CORP"] = OLD
    planned = fresh.run("plan").stdout
    fresh.run("apply", "--auto-approve")
    run = fresh.json("status", "job.fit")["run"]
    kept = [(holder.name, oct(holder.stat().st_mode & 0o777)) for holder in holders(fresh, OLD)]
    lose_supervisor(fresh, run)
    del fresh.variables["CORP"]

    output = fresh.run("status").stdout
    changes = fresh.actions()
    fresh.run("reconcile", "--once")
    again = fresh.run("status").stdout
    gate.touch()
    after = ended(fresh, "job.fit")

    assert SAYS in planned
    assert kept == [("secrets.json", "0o600")]
    assert "waiting for apply or reconcile to resume it" in output
    assert changes == {}
    assert "waits for job.prep to complete" in again
    assert (after["run"], after["status"]) == (run, "TRAINING_JOB_COMPLETED")
    assert "got old" in fresh.run("logs", "job.fit").stdout
    assert holders(fresh, OLD) == []


QUEUE = """\
secrets: {corp: {from: env, name: CORP}}
jobs:
  fit:
    matrix: {n: [1, 2]}
    max_parallel: 1
    runtime:
      start_commands: ["while ! test -e WAITS; do sleep 0.05; done", "printf %s \\"$TOKEN\\" | sha256sum"]
      environment_variables: {TOKEN: {secret: corp}}
"""


def test_a_run_waits_for_secrets_and_goes_on_with_those_that_are_pushed(
    fresh: ProjectHarness,
) -> None:
    """It says what it waits for and is planned as it is; pushed, the same run waits in its queue again, and runs with today's value."""
    gate = fresh.directory.parent / "go"
    fresh.variables["CORP"] = OLD
    fresh.write({"trainctl.yaml": QUEUE.replace("WAITS", str(gate))})
    fresh.run("apply", "--auto-approve")
    jobs = fresh.json("status")["jobs"]
    (lost,) = [job for job in jobs if job["status"] == "TRAINING_JOB_PENDING"]
    lose_supervisor(fresh, lost["run"])
    output = fresh.run("status", "fit").stdout
    changed = fresh.actions()
    fresh.variables["CORP"] = NEW

    pushed = fresh.run("secrets", "push").stdout
    again = fresh.run("secrets", "push").stdout
    gate.touch()
    after = ended(fresh, lost["address"])

    assert "pending: waits for secrets" in output
    assert changed == {}
    assert f"{lost['address']}: run 1 ({lost['run']}) pending: waits for one of 1 slots" in pushed
    assert again == "No runs wait for secrets.\n"
    assert (after["run"], after["status"]) == (lost["run"], "TRAINING_JOB_COMPLETED")
    logs = fresh.run("logs", lost["address"]).stdout
    assert hashlib.sha256(NEW.encode()).hexdigest() in logs
    assert NEW not in pushed + output
    assert holders(fresh, NEW) == []
