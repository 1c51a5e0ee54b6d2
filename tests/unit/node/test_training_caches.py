"""Training caches on a node: users, content, clearing, and the commands that prepare them once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
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

DAY = 86_400


@pytest.fixture
def cache(node: NodeHarness) -> Path:
    """A cache in the node's own place with an old directory, a new one, and a link that leads out."""
    directory = node.root / "caches" / "demo"
    node.call("make_cache", owned(directory))
    for name, days in (("old/deep/a.bin", 40), ("old/b.bin", 40), ("new/c.bin", 0)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (time.time(), time.time() - days * DAY))
    outside = node.base / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    os.utime(outside / "precious", (0, 0))
    (directory / "old" / "away").symlink_to(outside)
    os.utime(directory / "old" / "away", (0, 0), follow_symlinks=False)
    return directory


def owned(directory: Path, lineage: str = "one", owner: str = "demo-lab") -> dict[str, Any]:
    """A request about a directory in an owner's name."""
    return {"directory": str(directory), "lineage": lineage, "owner": owner}


def entries(node: NodeHarness, directory: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    lines = node.raw("read_cache", {"directory": str(directory)}).splitlines()
    *rows, total = [json.loads(line) for line in lines]
    return {row[0]: row[1:] for row in rows}, total


def state(node: NodeHarness, directory: Path, lineage: str = "one") -> dict[str, Any]:
    """What a plan learns about a cache."""
    request = {"lineage": lineage, "caches": [owned(directory, lineage)]}
    answer: dict[str, Any] = node.call("cache_state", request)["caches"][0]
    return answer


@pytest.mark.parametrize("other", [("two", "demo-lab"), ("one", "other-lab")])
@pytest.mark.parametrize("outside", [False, True])
def test_the_last_owner_removes_it(
    node: NodeHarness, other: tuple[str, str], outside: bool
) -> None:
    """Of two states, or of two projects of one state, that share it."""
    directory = (node.base if outside else node.root / "caches") / "shared"
    node.call("make_cache", owned(directory))
    node.call("make_cache", owned(directory, *other))
    (directory / "data").write_bytes(b"12345")

    assert state(node, directory)["others"] == ["+".join(other)]
    first = node.call("remove_cache", owned(directory))
    kept = (directory / "data").exists()
    second = node.call("remove_cache", owned(directory, *other))

    assert (first["removed"], kept, second["removed"]) == (False, True, True)
    assert second["bytes"] >= 5
    assert not directory.exists()
    assert list((node.root / "training").iterdir()) == []


def test_a_directory_that_was_there_before_is_never_removed(
    node: NodeHarness, tmp_path: Path
) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "data").write_bytes(b"x")
    node.call("make_cache", owned(directory))

    assert not state(node, directory)["ours"]
    assert not node.call("remove_cache", owned(directory))["removed"]
    assert [path.name for path in directory.iterdir()] == ["data"]


def test_a_walk_follows_no_link(node: NodeHarness, cache: Path) -> None:
    """Directories add up what is below them; any name is printed completely."""
    names = [b"two\nlines", b"\xff\xfe", b"-rf", "ключ".encode()]
    for name in names:
        Path(os.fsdecode(os.fsencode(cache) + b"/" + name)).write_text("")

    result, total = entries(node, cache)

    listed = ["new", "new/c.bin", "old", "old/away", "old/b.bin", "old/deep", "old/deep/a.bin"]
    assert {os.fsencode(name) for name in result} == {*names, *map(os.fsencode, listed)}
    sizes = [result[name][0] for name in ("old", "old/deep", "new", "old/away")]
    assert sizes == [2000, 1000, 1000, 0]
    assert (total["files"], total["bytes"], total["is_complete"]) == (8, 3000, True)


def test_plans_use_the_summary_of_the_last_walk(node: NodeHarness, cache: Path) -> None:
    """The end of a run that uses the cache renews it."""
    assert state(node, cache)["bytes"] == 3000
    entries(node, cache)
    (cache / "more").write_bytes(b"x" * 500)
    assert state(node, cache)["bytes"] == 3000
    entries(node, cache)
    assert state(node, cache)["bytes"] == 3500
    node.run(f"head -c 700 /dev/zero > {cache}/by-the-job", caches=[str(cache)])
    assert wait_for(lambda: state(node, cache)["bytes"] == 4200)


def test_clearing_removes_what_is_old(node: NodeHarness, cache: Path) -> None:
    """Files, links and emptied directories; not the target of a link; a dry run removes nothing."""
    request = {"directory": str(cache), "older_than_seconds": 30 * DAY}
    dry = node.call("clear_cache", {**request, "dry_run": True})
    before = sorted(entries(node, cache)[0])
    done = node.call("clear_cache", request)

    assert dry == done == {"files": 3, "bytes": 2000, "left": 0}
    assert "old/deep/a.bin" in before
    assert sorted(entries(node, cache)[0]) == ["new", "new/c.bin"]
    assert state(node, cache)["bytes"] == 1000
    assert (node.base / "outside" / "precious").read_text() == "keep"


def test_a_cache_in_use_is_not_cleared(node: NodeHarness, cache: Path) -> None:
    """The error names the run; a dry run is allowed, and clearing after the run's end."""
    node.start(node.spec("sleep 60", caches=[str(cache)]))
    request = {"directory": str(cache)}

    assert node.call("clear_cache", {**request, "dry_run": True})["files"] == 4
    with pytest.raises(NodeProgramError, match=r"in use by run 1 of job\.sft") as refused:
        node.call("clear_cache", request)
    assert refused.value.kind == "LockHeld"
    node.call("stop", {"key": "run-1", "grace_seconds": 0})
    assert node.call("clear_cache", request)["files"] == 4


COMPLETED = "TRAINING_JOB_COMPLETED"


@pytest.fixture
def empty_cache(node: NodeHarness) -> Path:
    directory = node.root / "caches" / "demo"
    request = {"directory": str(directory), "lineage": "one", "owner": "demo-lab"}
    node.call("make_cache", request)
    return directory


def prepared(empty_cache: Path, *commands: str, key: str = "run-1") -> dict[str, Any]:
    """The cache's part of a run's specification."""
    return {
        "key": key,
        "caches": [str(empty_cache)],
        "cache_config": {"enabled": True, "prepare_commands": list(commands)},
        "project_cache": str(empty_cache),
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


def test_a_cache_is_prepared_once_with_the_jobs_environment(
    node: NodeHarness, empty_cache: Path
) -> None:
    """Code, variables and secrets are there; the next run doesn't do it again; other commands are run."""
    node.upload_code({"fetch.sh": "echo $A $B > $1/data; echo once >> $1/count"})
    fetch = prepared(empty_cache, "echo fetching", f"sh fetch.sh {empty_cache}")
    given = {"environment": {"A": "plain"}, "environment_variables": {"B": {"secret": "token"}}}
    node.start(node.spec(f"cat {empty_cache}/data", **given, **fetch), {"token": "secret-b"})
    first = node.ended()

    assert (first["status"], first["waiting"]) == (COMPLETED, None)
    assert node.log() == "plain secret-b\n"
    assert printed(node) == "fetching\n"
    assert node.run("true", **{**fetch, "key": "run-2"})["status"] == COMPLETED
    assert (empty_cache / "count").read_text() == "once\n"
    node.run("true", **prepared(empty_cache, f"echo other >> {empty_cache}/count", key="run-3"))
    assert (empty_cache / "count").read_text() == "once\nother\n"


def test_two_runs_at_once_prepare_it_once(node: NodeHarness, empty_cache: Path) -> None:
    """The other run waits for the first; the cache can't be cleared meanwhile."""
    begun, go = node.base / "begun", node.base / "go"
    commands = (
        f"echo x >> {begun}",
        f"until test -e {go}; do sleep 0.05; done; echo done > {empty_cache}/data",
    )
    specs = [
        node.spec(f"cat {empty_cache}/data", **prepared(empty_cache, *commands, key=key))
        for key in ("run-1", "run-2")
    ]
    with starting(node, specs[0]) as first:
        wait_for(begun.exists)
        with starting(node, specs[1]):
            assert waiting(node, "run-2") == "waits for another run to prepare the training cache"
            states = [node.status(key)["status"] for key in ("run-1", "run-2")]
            with pytest.raises(NodeProgramError, match="is being prepared or cleared"):
                node.call("clear_cache", {"directory": str(empty_cache)})
            assert first.stdout is not None
            event = next(line for line in first.stdout if b'"waiting"' in line)
            go.touch()

    assert b"prepares the training cache" in event
    assert states == ["TRAINING_JOB_DEPLOYING", "TRAINING_JOB_PENDING"]
    assert [node.ended(key)["status"] for key in ("run-1", "run-2")] == [COMPLETED] * 2
    assert begun.read_text() == "x\n"
    assert node.log("run-2") == "done\n"


def test_a_command_that_fails_ends_the_deployment(node: NodeHarness, empty_cache: Path) -> None:
    """The error has the command, its code and the last lines; the job never runs; the next run tries again."""
    marker = node.base / "ran"
    commands = ("echo one; echo two; echo three; echo four >&2; exit 3", "true")
    status = node.run(f"touch {marker}", **prepared(empty_cache, *commands))
    node.run("true", **prepared(empty_cache, *commands, key="run-2"))

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_DEPLOY_FAILED", 3)
    assert status["error"].startswith("prepare command 1 of 2 exited with 3: echo one;")
    assert status["error"].endswith("Output: two / three / four")
    assert status["started_at"] is None
    assert not marker.exists()
    assert printed(node, "run-2") == "one\ntwo\nthree\nfour\n"


def test_commands_end_with_a_killed_supervisor(node: NodeHarness, empty_cache: Path) -> None:
    """The run is not lost, and the next start runs them again."""
    pid = node.base / "pid"
    command = (
        f"echo $$ > {pid}; test -e {empty_cache}/half || (touch {empty_cache}/half; sleep 600)"
    )
    spec = node.spec(f"echo job; ls {empty_cache}", **prepared(empty_cache, command))
    with starting(node, spec):
        wait_for((empty_cache / "half").exists)
        os.kill(int(node.status()["pid"]), signal.SIGKILL)
    shell = int(pid.read_text())
    wait_for(lambda: not is_alive(shell))

    assert node.status()["status"] == "TRAINING_JOB_CREATED"
    node.start(spec)
    assert node.ended()["status"] == COMPLETED
    assert node.log() == "job\nhalf\n"


@pytest.mark.parametrize("key", ["run-1", "run-2"])
def test_a_stop_ends_the_preparation(node: NodeHarness, empty_cache: Path, key: str) -> None:
    """Of the run that prepares, and of the run that waits for it: its job never starts."""
    marker, begun = node.base / "ran", node.base / "begun"
    commands = f"touch {begun}; sleep 600"
    first, second = (
        node.spec(f"touch {marker}", **prepared(empty_cache, commands, key=name))
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


def test_the_job_finds_its_hub_cache_in_its_home(node: NodeHarness, empty_cache: Path) -> None:
    """``~/.cache/huggingface`` is the cache's directory, for the job alone."""
    hub = empty_cache / "huggingface"
    link = {"path": "~/.cache/huggingface", "target": str(hub), "variable": "HF_HOME"}
    node.run(
        "ls ~/.cache/huggingface; echo token > ~/.cache/huggingface/x; echo ${HF_HOME-unset}",
        links=[link],
        caches=[str(empty_cache)],
    )

    assert node.log() == "unset\n"
    assert (hub / "x").read_text() == "token\n"
    assert not (node.home / ".cache" / "huggingface" / "x").exists()
