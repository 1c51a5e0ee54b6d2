"""Runs that are retried, and the limits of their time, disk space and logs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError, is_alive, wait_for
from tests.support.projects.weights_project import small_disk
from trainctl.node.runs.logs import LogTruncator
from trainctl.node.runs.record import RECORD_BYTES, NodeRun
from trainctl.node.system.layout import Layout

pytestmark = pytest.mark.integration


def test_a_failed_job_is_retried_with_its_code_and_checkpoints(node: NodeHarness) -> None:
    kept = node.base / "kept"
    kept.mkdir()
    node.upload_code({"counter": "0"})

    status = node.run(
        "cat counter; echo 1 > counter",
        f"echo attempt $BT_RETRY_COUNT finds $(ls {kept} | wc -l); touch {kept}/$BT_RETRY_COUNT",
        "test $BT_RETRY_COUNT = 2",
        retry={"max_attempts": 5, "delay": 0},
    )

    assert (status["status"], status["retries"]) == ("TRAINING_JOB_COMPLETED", 2)
    assert status["error"] is None
    assert node.log().split("\n") == [*(f"0attempt {n} finds {n}" for n in range(3)), ""]


def test_a_run_that_is_stopped_before_its_next_attempt_is_not_retried(node: NodeHarness) -> None:
    node.start(node.spec("exit 1", retry={"max_attempts": 9, "delay": 600}))
    wait_for(lambda: node.call("status", {"keys": ["run-1"]})["runs"]["run-1"]["retries"])

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_STOPPED", 1)


def test_a_run_fails_after_its_longest_time_and_is_not_retried(node: NodeHarness) -> None:
    mark = node.base / "pid"
    status = node.run(
        f"(setsid sleep 99 & echo $! > {mark}); sleep 99",
        max_duration=0.5,
        grace_seconds=0.1,
        retry={"max_attempts": 9, "delay": 0},
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


RUN_RANK = """
import json, sys
from trainctl.node.runs.record import NodeRun
from trainctl.node.supervision.batch_methods import run_rank
write = NodeRun.write
def noted(run, record):
    print(record["status"], flush=True)
    write(run, record)
NodeRun.write = noted
run_rank(json.load(sys.stdin), print)
"""


def test_a_batch_run_that_is_interrupted_never_seems_to_have_ended(node: NodeHarness) -> None:
    """A client that asks just then would record its end, although the batch system starts it again."""
    spec = {**node.spec("sleep 60"), "batch": {}}
    node.upload_code({"nothing.txt": ""}, spec["code"])
    node.call("create_batch_run", {"key": "run-1", "runs": [spec], "secrets": {}})
    variables = {"rank": "RANK", "restarts": "RESTARTS", "gpus": "GPUS", "host": "HOST"}
    own = {"root": str(node.root), "key": "run-1", "data": str(node.data)}
    request = {**own, **variables, "forwarded": [], "node_cache": ""}
    with subprocess.Popen(
        [sys.executable, "-c", RUN_RANK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**node.environment, "RANK": "0"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        statuses = iter(process.stdout.readline, "")
        assert "TRAINING_JOB_RUNNING\n" in statuses
        process.terminate()
        recorded = {*statuses}

    assert recorded <= {"TRAINING_JOB_RUNNING\n", "TRAINING_JOB_PENDING\n"}
    assert (process.returncode, node.status()["status"]) == (99, "TRAINING_JOB_PENDING")
    stopped = {"status": "TRAINING_JOB_STOPPED", "error": None}
    node.call("end_batch_run", {"key": "run-1", "ranks": 1, **stopped})


def test_a_run_that_exceeds_its_volume_is_stopped(node: NodeHarness) -> None:
    """By what was measured last. It is written again, as a measurement may be in progress."""
    document = (
        """printf '{"due": %s, "usage": {"checkpoints": 3000000000}}' $(($(date +%s) + 999))"""
    )
    place = "$TRAINCTL_RUN_DIRECTORY/metrics-disk.json"
    usage = f"while {document} >{place}.new; do mv {place}.new {place}; sleep 0.1; done"
    node.start(node.spec(usage, checkpointing_config={"volume_size_gib": 1}))
    done = node.ended()

    assert done["status"] == "TRAINING_JOB_FAILED"
    assert done["error"] == "its checkpoints take 3.0 GB, volume_size_gib allows 1.1 GB"


def test_a_run_that_fills_the_disk_is_stopped(node: NodeHarness) -> None:
    with small_disk(node.root, "200m"):
        node.start(node.spec("sleep 60", key="run-2"))
        node.start(node.spec("dd if=/dev/zero of=big bs=64k count=3176 2>/dev/null; sleep 60"))
        done = node.ended()

        assert done["status"] == "TRAINING_JOB_FAILED"
        assert done["error"].startswith(f"it filled the disk of {node.directory()}/work: ")
        assert node.status("run-2")["status"] == "TRAINING_JOB_RUNNING"
        node.call("stop", {"key": "run-2", "grace_seconds": 0})


def test_runs_end_and_are_stopped_on_a_full_disk(node: NodeHarness) -> None:
    """Its last checkpoint, which has no space in the store, isn't waited for."""
    with small_disk(node.root, "24m"):
        saved = node.data / "checkpoints" / "demo/sft/1-x" / "rank-0" / "step-1"
        save = f"mkdir -p {saved}; head -c 1000000 /dev/urandom >{saved}/weights"
        fill = f"cat /dev/zero >{node.root}/others 2>/dev/null || true"
        spec = node.spec(save, fill, "exit 7", checkpointing_config={"enabled": True})
        url = f"file://{node.root}/store"
        spec["store"] = {"prefix": "demo/sft/1-x", "url": url, "debounce_seconds": 600, "idle_seconds": 600}  # fmt: skip
        node.start(node.spec("sleep 600", key="run-2", grace_seconds=1))
        node.start(spec)
        done = node.ended()

        assert (done["status"], done["exit_code"]) == ("TRAINING_JOB_FAILED", 7)
        assert done["error"] == "start command 3 of 3 exited with 7: exit 7"
        assert done["sync"]["pending"] == ["step-1"]
        assert done["sync"]["error"].startswith("no space left on the node's disk: ")
        run = NodeRun(Layout(str(node.root)), "run-2")
        run.release_space(RECORD_BYTES)  # as before uploads
        with contextlib.suppress(OSError), (node.root / "more").open("wb") as more:
            more.write(bytes(2**24))
        with pytest.raises(NodeProgramError, match="no space left on the node's disk"):
            node.start(node.spec("true", key="run-3"))
        node.call("expect_stop", {"key": "run-2", "ranks": 1, "grace_seconds": 60})
        stopped = node.call("stop", {"key": "run-2", "grace_seconds": 60})
        assert stopped["status"] == "TRAINING_JOB_STOPPED"
