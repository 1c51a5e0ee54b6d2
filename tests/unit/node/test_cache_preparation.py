"""Commands that prepare a training cache: once for each cache and text, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, is_alive, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def cache(node: NodeHarness) -> Path:
    """An empty cache."""
    directory = node.root / "caches" / "demo"
    request = {"directory": str(directory), "lineage": "one", "owner": "demo-lab"}
    node.call("make_cache", request)
    return directory


def prepared(cache: Path, *commands: str, key: str = "run-1") -> dict[str, Any]:
    """What of a run's specification is about its cache."""
    return {
        "key": key,
        "caches": [str(cache)],
        "prepare": {"commands": list(commands), "directory": str(cache)},
    }


def printed(node: NodeHarness, key: str = "run-1") -> str:
    """What the prepare commands of a run printed."""
    path = node.root / "runs" / key / "log" / "prepare-rank-0.log"
    return path.read_text() if path.exists() else ""


def waits(node: NodeHarness, key: str) -> str:
    """What a run waits for, once it does."""
    return str(wait_for(lambda: (node.status(key) or {}).get("waiting")))


def test_it_is_done_once_with_all_that_the_job_finds(node: NodeHarness, cache: Path) -> None:
    """Code, variables and secrets are there; the job finds what was made; the next run doesn't do it again; other commands are done."""
    node.upload_code({"fetch.sh": "echo $A $B > $1/data; echo once >> $1/count"})
    fetch = prepared(cache, "echo fetching", f"sh fetch.sh {cache}")
    given = {"environment": {"A": "plain"}, "secret_environment": {"B": "token"}}
    node.start(node.spec(f"cat {cache}/data", **given, **fetch), {"token": "secret-b"})
    first = node.ended()

    assert (first["status"], first["waiting"]) == ("TRAINING_JOB_COMPLETED", None)
    assert node.log() == "plain secret-b\n"
    assert printed(node) == "fetching\n"
    assert node.run("true", **{**fetch, "key": "run-2"})["status"] == "TRAINING_JOB_COMPLETED"
    assert (cache / "count").read_text() == "once\n"
    node.run("true", **prepared(cache, f"echo other >> {cache}/count", key="run-3"))
    assert (cache / "count").read_text() == "once\nother\n"


def test_following_what_another_run_has_ends_at_once(node: NodeHarness, cache: Path) -> None:
    """The run may go on for days; who has its log is known before its first command."""
    fetch = prepared(cache, "echo fetching")
    node.run("true", **fetch)
    gate = node.base / "gate"
    gate.touch()
    spec = node.spec(f"while test -e {gate}; do sleep 0.05; done", **{**fetch, "key": "run-2"})
    node.start(spec)
    asked = {"key": "run-2", "rank": 0, "prepare": True, "follow": True}
    with node.popen("read_lines", asked) as process:
        try:
            told, _ = process.communicate(timeout=30)
        finally:
            process.kill()
            gate.unlink()

    assert b"prepared_by" in told


def test_two_at_once(node: NodeHarness, cache: Path) -> None:
    """One prepares, the other waits and says so; both jobs find the result."""
    node.upload_code({"nothing.txt": ""})
    mark, go = node.base / "begun", node.base / "go"
    commands = (
        f"echo x >> {mark}",
        f"until test -e {go}; do sleep 0.05; done; echo done > {cache}/data",
    )
    first = node.popen(
        "start", node.start_request(node.spec(f"cat {cache}/data", **prepared(cache, *commands)))
    )
    wait_for(mark.exists)
    spec = node.spec(f"cat {cache}/data", **prepared(cache, *commands, key="run-2"))
    second = node.popen("start", node.start_request(spec))
    waiting = waits(node, "run-2")
    states = node.status("run-1")["status"], node.status("run-2")["status"]
    go.touch()
    for process in (first, second):
        process.communicate(timeout=30)

    assert waiting == "waits for another run to prepare the training cache"
    assert states == ("TRAINING_JOB_DEPLOYING", "TRAINING_JOB_PENDING")
    assert [node.ended(key)["status"] for key in ("run-1", "run-2")] == [
        "TRAINING_JOB_COMPLETED"
    ] * 2
    assert mark.read_text() == "x\n"
    assert node.log("run-2") == "done\n"


def test_whoever_starts_it_is_told_why_it_takes_long(node: NodeHarness, cache: Path) -> None:
    """Events come while the caller waits, so that it knows that somebody is alive."""
    node.start(node.spec("true", **prepared(cache, "sleep 3")))

    assert {"waiting": "prepares the training cache"} in node.events


def test_a_command_that_fails_ends_the_deployment(node: NodeHarness, cache: Path) -> None:
    """The command, its code and the last lines are told; the job's own command never ran; the next run tries again."""
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


def test_a_killed_supervisor_takes_its_commands_along(node: NodeHarness, cache: Path) -> None:
    """Nothing of them is left, the run is not lost, and the next start does it again, to its end."""
    pid = node.base / "pid"
    command = f"echo $$ > {pid}; test -e {cache}/half || (touch {cache}/half; sleep 600)"
    spec = node.spec(f"echo job; ls {cache}", **prepared(cache, command))
    node.upload_code({"nothing.txt": ""})
    caller = node.popen("start", node.start_request(spec))
    wait_for((cache / "half").exists)
    os.kill(int(node.status()["pid"]), signal.SIGKILL)
    caller.communicate(timeout=30)
    shell = int(pid.read_text())
    wait_for(lambda: not is_alive(shell))

    assert node.status()["status"] == "TRAINING_JOB_CREATED"
    node.start(spec)
    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log() == "job\nhalf\n"


@pytest.mark.parametrize("key", ["run-1", "run-2"])
def test_a_stop_ends_it(node: NodeHarness, cache: Path, key: str) -> None:
    """The one that prepares, and the one that waits for it: STOPPED, and its job never begins."""
    marker, begun = node.base / "ran", node.base / "begun"
    callers = []
    node.upload_code({"nothing.txt": ""})
    for one in ("run-1", "run-2"):
        spec = node.spec(f"touch {marker}", **prepared(cache, f"touch {begun}; sleep 600", key=one))
        callers.append(node.popen("start", node.start_request(spec)))
        wait_for(begun.exists)
        waits(node, one)

    status = node.call("stop", {"key": key, "grace_seconds": 0})

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_STOPPED", None)
    for one in ("run-1", "run-2"):
        node.call("stop", {"key": one, "grace_seconds": 0})
    for caller in callers:
        caller.communicate(timeout=30)
    assert not marker.exists()


def test_a_cache_that_was_cleared_or_lost_is_prepared_anew(node: NodeHarness, cache: Path) -> None:
    """The mark lies in the cache itself, and goes when something of it does."""
    count = node.base / "count"
    command = f"echo x >> {count}; touch {cache}/data"
    node.run("true", **prepared(cache, command))
    node.call("clear_cache", {"directory": str(cache)})
    node.run("true", **prepared(cache, command, key="run-2"))
    cache.rename(node.base / "elsewhere")
    node.run(f"ls {cache}", **prepared(cache, command, key="run-3"))

    assert count.read_text() == "x\nx\nx\n"
    assert node.log("run-3") == "data\n"


def test_a_cache_is_not_cleared_while_it_is_prepared(node: NodeHarness, cache: Path) -> None:
    """Somebody else's clearing would take away what is being made."""
    begun = node.base / "begun"
    node.upload_code({"nothing.txt": ""})
    spec = node.spec("true", **prepared(cache, f"touch {begun}; sleep 600"))
    caller = node.popen("start", node.start_request(spec))
    wait_for(begun.exists)
    with pytest.raises(Exception, match="is being prepared or cleared"):
        node.call("clear_cache", {"directory": str(cache)})
    node.call("stop", {"key": "run-1", "grace_seconds": 0})
    caller.communicate(timeout=30)


@pytest.mark.parametrize("home", ["none", "ready", "linked"])
def test_the_hub_cache_of_the_home_directory(node: NodeHarness, cache: Path, home: str) -> None:
    """``~/.cache/huggingface`` is the cache's directory, for the job alone, wherever the home keeps its caches."""
    if home == "linked":
        (node.base / "large").mkdir()
        (node.home / ".cache").symlink_to(node.base / "large")
    if home == "ready":
        (node.home / ".cache" / "huggingface").mkdir(parents=True)
        (node.home / ".cache" / "huggingface" / "mine").write_text("")
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
    assert not (node.base / "large" / "huggingface" / "x").exists()
