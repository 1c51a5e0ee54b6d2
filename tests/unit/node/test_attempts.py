"""Runs that are retried, that last too long, and logs that grow too large."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, is_alive, wait_for
from trainctl.node.runs.log_index import LogTruncator

pytestmark = pytest.mark.integration


def test_a_failed_job_is_retried_with_its_code_and_checkpoints(node: NodeHarness) -> None:
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
    assert node.log().split("\n") == [*(f"0attempt {n} finds {n}" for n in range(3)), ""]


@pytest.mark.parametrize(
    ("trigger", "seconds", "command", "status"),
    [
        ("on_startup", 0, "true", "TRAINING_JOB_COMPLETED"),
        ("on_failure", 1000, "true", "TRAINING_JOB_COMPLETED"),
        ("on_demand", 1000, "exit 3", "TRAINING_JOB_FAILED"),
    ],
)
def test_a_session_is_kept_only_if_it_was_requested(
    node: NodeHarness, trigger: str, seconds: int, command: str, status: str
) -> None:
    session = {"trigger": trigger, "timeout_seconds": seconds}
    retry = {"max_attempts": 2, "delay_seconds": 0}
    ended = node.run("echo once", command, session=session, retry=retry)

    assert (ended["status"], ended["session"]) == (status, None)
    assert ended["exit_code"] == (3 if status == "TRAINING_JOB_FAILED" else 0)
    assert node.log() == "once\n" * (2 if ended["exit_code"] else 1)


def test_a_session_is_extended_from_the_end_of_its_commands(
    node: NodeHarness, tmp_path: Path
) -> None:
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

    assert first["until"] is None
    assert held["exit_code"] == 3
    assert second["until"] == held["until"] + 50
    assert (stopped["status"], stopped["exit_code"]) == ("TRAINING_JOB_FAILED", 3)


def test_a_run_that_is_stopped_before_its_next_attempt_is_not_retried(node: NodeHarness) -> None:
    node.start(node.spec("exit 1", retry={"max_attempts": 9, "delay_seconds": 600}))
    wait_for(lambda: node.call("status", {"keys": ["run-1"]})["runs"]["run-1"]["retries"])

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_STOPPED", 1)


def test_a_run_fails_after_its_longest_time_and_is_not_retried(node: NodeHarness) -> None:
    mark = node.base / "pid"
    status = node.run(
        f"(setsid sleep 99 & echo $! > {mark}); sleep 99",
        max_duration_seconds=0.5,
        grace_seconds=0.1,
        retry={"max_attempts": 9, "delay_seconds": 0},
    )

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_FAILED", -signal.SIGTERM)
    assert "max_duration" in status["error"]
    assert not status["retries"]
    assert not is_alive(int(mark.read_text()))


@pytest.mark.parametrize(
    ("command", "code"),
    [("trap 'exit 5' TERM", 5), ("trap '' TERM", -signal.SIGKILL), ("true", -signal.SIGTERM)],
)
def test_a_stopped_run_has_the_exit_code_of_its_commands(
    node: NodeHarness, command: str, code: int
) -> None:
    ready = node.base / "ready"
    waits = f"{command}; touch {ready}; while true; do sleep 0.05; done"
    node.start(node.spec(waits, grace_seconds=0.5))
    wait_for(ready.exists)
    node.call("stop", {"key": "run-1"})
    status = node.ended("run-1")

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_STOPPED", code)


def test_a_large_log_keeps_its_beginning_its_end_and_its_offsets(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    truncate = LogTruncator(log, limit=2**20)
    with log.open("ab") as stream:
        for number in range(64):
            stream.write(b"%04d" % number * 2**14)
            stream.flush()
            truncate()

    size = log.stat()
    assert size.st_size == 64 * 2**16
    assert size.st_blocks * 512 <= 2**20 + 2**16
    data = log.read_bytes()
    assert data.startswith(b"0000" * 2**14)
    assert data.endswith(b"".join(b"%04d" % number * 2**14 for number in range(57, 64)))
    with log.open("rb") as stream:
        assert os.lseek(stream.fileno(), 2**18, os.SEEK_DATA) > 2**21
