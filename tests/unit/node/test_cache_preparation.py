"""Commands that prepare a training cache: once for each cache and text."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import (
    NodeHarness,
    NodeProgramError,
    is_alive,
    wait_for,
)
from tests.support.node_program.peers import kill

pytestmark = pytest.mark.integration

COMPLETED = "TRAINING_JOB_COMPLETED"


@pytest.fixture
def cache(node: NodeHarness) -> Path:
    """An empty cache."""
    directory = node.root / "caches" / "demo"
    request = {"directory": str(directory), "lineage": "one", "owner": "demo-lab"}
    node.call("make_cache", request)
    return directory


def prepared(cache: Path, *commands: str, key: str = "run-1") -> dict[str, Any]:
    """The cache's part of a run's specification."""
    return {
        "key": key,
        "caches": [str(cache)],
        "cache_config": {"enabled": True, "prepare_commands": list(commands)},
        "project_cache": str(cache),
    }


def printed(node: NodeHarness, key: str = "run-1") -> str:
    """The output of a run's prepare commands."""
    path = node.root / "runs" / key / "log" / "prepare-rank-0.log"
    return path.read_text() if path.exists() else ""


def waiting(node: NodeHarness, key: str) -> str:
    """What a run waits for, once it does."""
    return str(wait_for(lambda: (node.status(key) or {}).get("waiting")))


@contextmanager
def starting(node: NodeHarness, spec: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose caller waits until its cache is prepared."""
    if not node.call("has_code", {"digest": spec["code"]})["present"]:
        node.upload_code({"nothing.txt": ""}, spec["code"])
    caller = node.popen("start", node.start_request(spec))
    try:
        yield caller
        caller.communicate(timeout=60)
    finally:
        kill(caller)


def test_a_cache_is_prepared_once_with_the_jobs_environment(node: NodeHarness, cache: Path) -> None:
    """Code, variables and secrets are there; the next run doesn't do it again; other commands are run."""
    node.upload_code({"fetch.sh": "echo $A $B > $1/data; echo once >> $1/count"})
    fetch = prepared(cache, "echo fetching", f"sh fetch.sh {cache}")
    given = {"environment": {"A": "plain"}, "environment_variables": {"B": {"secret": "token"}}}
    node.start(node.spec(f"cat {cache}/data", **given, **fetch), {"token": "secret-b"})
    first = node.ended()

    assert (first["status"], first["waiting"]) == (COMPLETED, None)
    assert node.log() == "plain secret-b\n"
    assert printed(node) == "fetching\n"
    assert node.run("true", **{**fetch, "key": "run-2"})["status"] == COMPLETED
    assert (cache / "count").read_text() == "once\n"
    node.run("true", **prepared(cache, f"echo other >> {cache}/count", key="run-3"))
    assert (cache / "count").read_text() == "once\nother\n"


def test_two_runs_at_once_prepare_it_once(node: NodeHarness, cache: Path) -> None:
    """The other run waits for the first; the cache can't be cleared meanwhile."""
    begun, go = node.base / "begun", node.base / "go"
    commands = (
        f"echo x >> {begun}",
        f"until test -e {go}; do sleep 0.05; done; echo done > {cache}/data",
    )
    specs = [
        node.spec(f"cat {cache}/data", **prepared(cache, *commands, key=key))
        for key in ("run-1", "run-2")
    ]
    with starting(node, specs[0]) as first:
        wait_for(begun.exists)
        with starting(node, specs[1]):
            assert waiting(node, "run-2") == "waits for another run to prepare the training cache"
            states = [node.status(key)["status"] for key in ("run-1", "run-2")]
            with pytest.raises(NodeProgramError, match="is being prepared or cleared"):
                node.call("clear_cache", {"directory": str(cache)})
            assert first.stdout is not None
            event = next(line for line in first.stdout if b'"waiting"' in line)
            go.touch()

    assert b"prepares the training cache" in event
    assert states == ["TRAINING_JOB_DEPLOYING", "TRAINING_JOB_PENDING"]
    assert [node.ended(key)["status"] for key in ("run-1", "run-2")] == [COMPLETED] * 2
    assert begun.read_text() == "x\n"
    assert node.log("run-2") == "done\n"


def test_a_command_that_fails_ends_the_deployment(node: NodeHarness, cache: Path) -> None:
    """The error has the command, its code and the last lines; the job never runs; the next run tries again."""
    marker = node.base / "ran"
    commands = ("echo one; echo two; echo three; echo four >&2; exit 3", "true")
    status = node.run(f"touch {marker}", **prepared(cache, *commands))
    node.run("true", **prepared(cache, *commands, key="run-2"))

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_DEPLOY_FAILED", 3)
    assert status["error"].startswith("prepare command 1 of 2 exited with 3: echo one;")
    assert status["error"].endswith("Output: two / three / four")
    assert status["started_at"] is None
    assert not marker.exists()
    assert printed(node, "run-2") == "one\ntwo\nthree\nfour\n"


def test_commands_end_with_a_killed_supervisor(node: NodeHarness, cache: Path) -> None:
    """The run is not lost, and the next start runs them again."""
    pid = node.base / "pid"
    command = f"echo $$ > {pid}; test -e {cache}/half || (touch {cache}/half; sleep 600)"
    spec = node.spec(f"echo job; ls {cache}", **prepared(cache, command))
    with starting(node, spec):
        wait_for((cache / "half").exists)
        os.kill(int(node.status()["pid"]), signal.SIGKILL)
    shell = int(pid.read_text())
    wait_for(lambda: not is_alive(shell))

    assert node.status()["status"] == "TRAINING_JOB_CREATED"
    node.start(spec)
    assert node.ended()["status"] == COMPLETED
    assert node.log() == "job\nhalf\n"


@pytest.mark.parametrize("key", ["run-1", "run-2"])
def test_a_stop_ends_the_preparation(node: NodeHarness, cache: Path, key: str) -> None:
    """Of the run that prepares, and of the run that waits for it: its job never starts."""
    marker, begun = node.base / "ran", node.base / "begun"
    commands = f"touch {begun}; sleep 600"
    first, second = (
        node.spec(f"touch {marker}", **prepared(cache, commands, key=name))
        for name in ("run-1", "run-2")
    )
    with starting(node, first):
        wait_for(begun.exists)
        with starting(node, second):
            waiting(node, "run-2")
            status = node.call("stop", {"key": key, "grace_seconds": 0})
            for name in ("run-2", "run-1"):
                node.call("stop", {"key": name, "grace_seconds": 0})

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_STOPPED", None)
    assert not marker.exists()


def test_the_job_finds_its_hub_cache_in_its_home(node: NodeHarness, cache: Path) -> None:
    """``~/.cache/huggingface`` is the cache's directory, for the job alone."""
    hub = cache / "huggingface"
    link = {"path": "~/.cache/huggingface", "target": str(hub), "variable": "HF_HOME"}
    node.run(
        "ls ~/.cache/huggingface; echo token > ~/.cache/huggingface/x; echo ${HF_HOME-unset}",
        links=[link],
        caches=[str(cache)],
    )

    assert node.log() == "unset\n"
    assert (hub / "x").read_text() == "token\n"
    assert not (node.home / ".cache" / "huggingface" / "x").exists()
