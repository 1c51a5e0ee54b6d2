"""Runs that are tried again, that last too long, and logs that grow too large."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, is_alive, wait_for
from trainctl.node.runs.log_index import LogTruncator

pytestmark = pytest.mark.integration


def test_a_failed_job_is_tried_again_with_its_checkpoints(node: NodeHarness) -> None:
    """Each attempt begins with the code as it was shipped and finds what earlier ones kept; BT_RETRY_COUNT counts them."""
    kept = node.base / "kept"
    kept.mkdir()
    node.upload_code({"counter": "0"})

    status = node.run(
        "cat counter; echo 1 > counter",
        f"echo attempt $BT_RETRY_COUNT finds $(ls {kept} | wc -l); touch {kept}/$BT_RETRY_COUNT",
        "test $BT_RETRY_COUNT = 2",
        retry={"max_attempts": 5, "delay_seconds": 0},
    )

    assert (status["status"], status["retries"]) == ("TRAINING_JOB_COMPLETED", 2)
    assert status["error"] is None
    assert node.log().split("\n") == [
        *("0attempt 0 finds 0", "0attempt 1 finds 1", "0attempt 2 finds 2", "")
    ]


@pytest.mark.parametrize(
    ("trigger", "seconds", "command", "status"),
    [
        ("on_startup", 0, "true", "TRAINING_JOB_COMPLETED"),
        ("on_failure", 0, "exit 3", "TRAINING_JOB_FAILED"),
        ("on_failure", 1000, "true", "TRAINING_JOB_COMPLETED"),
        ("on_demand", 1000, "exit 3", "TRAINING_JOB_FAILED"),
    ],
)
def test_a_place_is_kept_only_if_asked_for(
    node: NodeHarness, trigger: str, seconds: int, command: str, status: str
) -> None:
    """The run ends as its commands did, after all attempts."""
    session = {"trigger": trigger, "timeout_seconds": seconds}
    retry = {"max_attempts": 2, "delay_seconds": 0}
    ended = node.run("echo once", command, session=session, retry=retry)

    assert (ended["status"], ended["session"]) == (status, None)
    assert ended["exit_code"] == (3 if status == "TRAINING_JOB_FAILED" else 0)
    assert node.log() == "once\n" * (2 if ended["exit_code"] else 1)


def test_a_place_is_kept_on_demand(node: NodeHarness, tmp_path: Path) -> None:
    """An extension while the commands run counts from their end; a stop before that end is a stop."""
    end = tmp_path / "end"
    session = {"trigger": "on_demand", "timeout_seconds": 1}
    commands = f"until [ -e {end} ]; do sleep 0.05; done; exit 3"
    node.start(node.spec(commands, session=session))
    first = node.call("extend_session", {"key": "run-1", "seconds": 1000})
    end.touch()
    wait_for(lambda: node.status()["session"])
    held = node.status()["session"]
    second = node.call("extend_session", {"key": "run-1", "seconds": 50})
    stopped = node.call("stop", {"key": "run-1", "grace_seconds": 5})
    end.unlink()
    node.start(node.spec(commands, session=session, key="run-2"))
    early = node.call("stop", {"key": "run-2", "grace_seconds": 5})

    assert first["until"] is None
    assert held["exit_code"] == 3
    assert second["until"] == held["until"] + 50
    assert (stopped["status"], stopped["exit_code"]) == ("TRAINING_JOB_FAILED", 3)
    assert early["status"] == "TRAINING_JOB_STOPPED"


def test_attempts_are_counted(node: NodeHarness) -> None:
    """The last allowed attempt decides; its command is named."""
    status = node.run("echo once more", "exit 3", retry={"max_attempts": 3, "delay_seconds": 0.01})

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_FAILED", 3)
    assert "start command 2 of 2 exited with 3" in status["error"]
    assert node.log() == "once more\n" * 3


def test_a_run_that_is_stopped_is_not_tried_again(node: NodeHarness) -> None:
    """Neither while it runs nor while it waits for its next attempt."""
    node.start(node.spec("exit 1", retry={"max_attempts": 9, "delay_seconds": 600}))
    wait_for(lambda: node.call("status", {"keys": ["run-1"]})["runs"]["run-1"]["retries"])

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_STOPPED", 1)


def test_a_run_ends_after_its_longest_time(node: NodeHarness) -> None:
    """With everything it started; it is a failure, and no reason to try again."""
    mark = node.base / "pid"
    status = node.run(
        f"(setsid sleep 99 & echo $! > {mark}); sleep 99",
        max_duration_seconds=0.5,
        grace_seconds=0.1,
        retry={"max_attempts": 9, "delay_seconds": 0},
    )

    assert status["status"] == "TRAINING_JOB_FAILED"
    assert "max_duration" in status["error"]
    assert not status["retries"]
    assert not is_alive(int(mark.read_text()))


def test_the_log_says_when_it_was_how_long(node: NodeHarness) -> None:
    """The times beside a log grow with it and end at its size."""
    seen = node.base / "seen"
    times = node.directory() / "log" / "rank-0.times"
    node.start(node.spec("echo one", f"until [ -e {seen} ]; do sleep 0.05; done", "echo two"))
    wait_for(lambda: times.exists() and times.read_text())
    seen.touch()
    node.ended("run-1")

    rows = [line.split() for line in times.read_text().splitlines()]
    assert [int(size) for _, size in rows] == [4, 8]
    assert float(rows[0][0]) <= float(rows[1][0])


def test_a_large_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    """The middle's blocks are freed, no offset moves, and what is written on the way stays."""
    log = tmp_path / "rank-0.log"
    keeper = LogTruncator(log, limit=2**20)
    with log.open("ab") as stream:
        for number in range(64):
            stream.write(b"%04d" % number * 2**14)
            stream.flush()
            keeper()

    found = log.stat()
    assert found.st_size == 64 * 2**16
    assert found.st_blocks * 512 <= 2**20 + 2**16
    data = log.read_bytes()
    assert data.startswith(b"0000" * 2**14)
    assert data.endswith(b"".join(b"%04d" % number * 2**14 for number in range(57, 64)))
    with log.open("rb") as stream:
        assert os.lseek(stream.fileno(), 2**18, os.SEEK_DATA) > 2**21


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("trap 'exit 5' TERM", 5),
        ("trap '' TERM", -signal.SIGKILL),
        ("true", -signal.SIGTERM),
    ],
)
@pytest.mark.parametrize("by", ["stop", "max_duration"])
def test_a_run_that_was_ended_has_the_exit_code_of_its_commands(
    node: NodeHarness, command: str, code: int, by: str
) -> None:
    """Of one that cleaned up, that went at once, and that had to be killed."""
    ready = node.base / "ready"
    waits = f"{command}; touch {ready}; while true; do sleep 0.05; done"
    more = {"max_duration_seconds": 1.0} if by == "max_duration" else {}
    node.start(node.spec(waits, grace_seconds=0.5, **more))
    wait_for(ready.exists)
    if by == "stop":
        node.call("stop", {"key": "run-1"})
    status = node.ended("run-1")

    assert (status["status"].rpartition("_")[2], status["exit_code"]) == (
        "STOPPED" if by == "stop" else "FAILED",
        code,
    )
