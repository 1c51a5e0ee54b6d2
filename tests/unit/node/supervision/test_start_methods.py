"""Secrets that a node keeps on its disk: as long as the run may have to be restarted, and no longer."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, all_text_below, is_alive, wait_for

pytestmark = pytest.mark.integration

SECRET = "Vb3nR8kT5wQ1-kept"


@pytest.fixture
def gate(node: NodeHarness) -> Path:
    """Remove it to complete the run that the tests' run follows."""
    path = node.base / "gate"
    path.touch()
    node.start(node.spec(f"while test -e {path}; do sleep 0.05; done", key="prep"))
    return path


def queued(node: NodeHarness, *, keeps: bool = True, then: str = "true") -> dict[str, Any]:
    """Start the run with a secret; its status while it waits."""
    spec = node.spec(
        'echo "has $TOKEN" | sha256sum',
        then,
        environment_variables={"TOKEN": {"secret": "corp"}},
        follows=[{"key": "prep", "address": "job.prep"}],
        persisted_secrets=["corp"] if keeps else [],
    )
    node.start(spec, {"corp": SECRET})
    return node.status()


def kill(node: NodeHarness, pid: int) -> None:
    """End a supervisor as a reboot does."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def resumed(node: NodeHarness, secrets: dict[str, str] | None = None) -> dict[str, Any]:
    """Resume the run with these secrets, or with those that the node keeps."""
    request = {"data": str(node.data), "key": "run-1", "secrets": secrets}
    return node.call("set_secrets", request)


def held(node: NodeHarness, text: str = SECRET) -> bool:
    """Whether any file of the node holds the value."""
    return text.encode() in all_text_below(node.root)


def test_a_run_is_resumed_with_its_kept_secret_which_its_first_command_removes(
    node: NodeHarness, gate: Path
) -> None:
    begun = node.base / "begun"
    waiting = queued(node, then=f"touch {begun}; sleep 60")
    kept = node.directory() / "secrets.json"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (kept, node.directory())]
    kill(node, waiting["pid"])
    status = node.status()

    again = resumed(node)
    gate.unlink()
    wait_for(begun.exists)
    wait_for(lambda: not held(node))

    assert modes == [0o600, 0o700]
    assert status["waiting"] == "waiting for apply or reconcile to resume it"
    assert again["waiting"] == "waits for job.prep to complete"
    assert hashlib.sha256(f"has {SECRET}\n".encode()).hexdigest() in node.log()


def test_secrets_are_kept_only_if_requested(node: NodeHarness, gate: Path) -> None:
    waiting = queued(node, keeps=False)

    assert not held(node)
    kill(node, waiting["pid"])
    assert node.status()["waiting"] == "waits for secrets"
    assert resumed(node)["waiting"] == "waits for secrets"
    gate.unlink()


def test_given_secrets_replace_kept_ones(node: NodeHarness, gate: Path) -> None:
    kill(node, queued(node)["pid"])
    resumed(node, {"corp": "another-value"})

    assert not held(node)
    assert held(node, "another-value")
    gate.unlink()
    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert not held(node, "another-value")


@pytest.mark.parametrize(
    ("method", "supervised"), [("stop", True), ("stop", False), ("remove", False)]
)
def test_a_waiting_run_that_is_stopped_or_removed_leaves_no_secret(
    node: NodeHarness, gate: Path, method: str, supervised: bool
) -> None:
    waiting = queued(node)
    if not supervised:
        kill(node, waiting["pid"])

    assert held(node)
    node.call(method, {"key": "run-1"})
    assert not held(node)
    gate.unlink()
