"""Secrets that a node keeps on its disk: for as long as the run may have to be begun anew, and no longer."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, all_text_below, is_alive, wait_for

pytestmark = pytest.mark.integration

SECRET = "Vb3nR8kT5wQ1-kept"
WANTS_SECRETS, WANTS_CARRYING_ON = (
    "waits for secrets",
    "waiting for apply or reconcile to resume it",
)
COMPLETED, LOST, STOPPED = (f"TRAINING_JOB_{word}" for word in ("COMPLETED", "LOST", "STOPPED"))


@pytest.fixture
def gate(node: NodeHarness) -> Path:
    """A run goes on as long as it is there; the run of the tests waits for that one's end."""
    path = node.base / "gate"
    path.touch()
    node.start(node.spec(f"while test -e {path}; do sleep 0.05; done", key="prep"))
    return path


def queued(node: NodeHarness, *, keeps: bool = True, then: str = "true") -> dict[str, Any]:
    """Start the run with a secret; its status while it waits."""
    spec = node.spec(
        'echo "has $TOKEN" | sha256sum',
        then,
        secret_environment={"TOKEN": "corp"},
        follows=[{"key": "prep", "address": "job.prep"}],
        **({"persist_secrets": True} if keeps else {}),
    )
    node.start(spec, {"corp": SECRET})
    return node.status()


def kill(node: NodeHarness, pid: int) -> None:
    """End a supervisor as a reboot does."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def carried_on(node: NodeHarness) -> dict[str, Any]:
    """Have the run go on with what the node has."""
    request = {"data": str(node.data), "key": "run-1", "secrets": None}
    return node.call("set_secrets", request)


def held(node: NodeHarness) -> bool:
    """Whether any file of the node holds the value."""
    return SECRET.encode() in all_text_below(node.root)


def test_a_run_goes_on_with_what_its_node_keeps(node: NodeHarness, gate: Path) -> None:
    """The value lies in one file that only this user reads, outlives the supervisor, is used, and goes when the first command begins."""
    begun = node.base / "begun"
    waiting = queued(node, then=f"touch {begun}; sleep 60")
    kept = node.directory() / "secrets.json"
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (kept, node.directory())]
    kill(node, waiting["pid"])
    told = node.status()

    again = carried_on(node)
    gate.unlink()
    wait_for(begun.exists)
    wait_for(lambda: not held(node))

    assert modes == [0o600, 0o700]
    assert (told["waiting"], again["waiting"]) == (
        WANTS_CARRYING_ON,
        "waits for job.prep to complete",
    )
    assert hashlib.sha256(f"has {SECRET}\n".encode()).hexdigest() in node.log()


def test_without_being_asked_nothing_is_kept(node: NodeHarness, gate: Path) -> None:
    """The run waits for its secrets, and can't be had to go on without them."""
    waiting = queued(node, keeps=False)
    nowhere = not held(node)
    kill(node, waiting["pid"])

    assert nowhere
    assert node.status()["waiting"] == WANTS_SECRETS
    assert carried_on(node)["waiting"] == WANTS_SECRETS
    gate.unlink()


def test_values_that_are_given_take_the_place_of_kept_ones(node: NodeHarness, gate: Path) -> None:
    """Whoever gives a run its secrets anew means these, also for the next time."""
    kill(node, queued(node)["pid"])
    request = {"data": str(node.data), "key": "run-1", "secrets": {"corp": "another-value"}}
    node.call("set_secrets", request)

    assert not held(node)
    assert b"another-value" in all_text_below(node.root)
    gate.unlink()
    assert node.ended()["status"] == COMPLETED
    assert b"another-value" not in all_text_below(node.root)


@pytest.mark.parametrize("supervised", [True, False])
def test_a_run_that_is_stopped_while_it_waits_leaves_none(
    node: NodeHarness, gate: Path, supervised: bool
) -> None:
    """Whether its supervisor ends it or somebody in its stead."""
    waiting = queued(node)
    if not supervised:
        kill(node, waiting["pid"])

    assert held(node)
    assert node.call("stop", {"key": "run-1"})["status"] == STOPPED
    assert not held(node)
    gate.unlink()


def test_a_run_that_is_removed_while_it_waits_leaves_none(node: NodeHarness, gate: Path) -> None:
    """With its supervisor dead it may be removed as it is."""
    kill(node, queued(node)["pid"])

    assert node.call("remove", {"key": "run-1"}) == {"removed": True}
    assert not held(node)
    gate.unlink()


def test_what_a_killed_supervisor_left_behind_goes_when_the_run_is_lost(
    node: NodeHarness, gate: Path
) -> None:
    """Killed between its first command and the removal, it leaves the file, and half of another; a look removes both."""
    queued(node, then="sleep 60")
    gate.unlink()
    status = wait_for(partial(_running, node))
    for name in ("secrets.json", ".secrets.json.1.abc"):
        (node.directory() / name).write_text(SECRET)
    kill(node, status["pid"])

    assert node.status()["status"] == LOST
    assert not held(node)


def _running(node: NodeHarness) -> dict[str, Any] | None:
    status = node.status()
    return status if status["status"] == "TRAINING_JOB_RUNNING" else None
