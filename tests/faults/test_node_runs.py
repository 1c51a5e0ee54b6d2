"""Runs whose supervisors are killed at every moment: the command is executed at most once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

from tests.support.node_program.nodes import LIVE, NodeHarness, is_alive, wait_for


def test_kills_between_claim_and_end_never_run_the_command_twice(tmp_path: Path) -> None:
    moments = random.Random(7)
    for attempt in range(2):
        base = tmp_path / str(attempt)
        base.mkdir()
        node = NodeHarness(base)
        node.upload_code({"x": ""})
        spec = node.spec("echo ran; sleep 0.2")
        for _ in range(4):
            callers = [node.popen("start", node.start_request(spec)) for _ in range(2)]
            time.sleep(moments.uniform(0, 0.2))
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(callers[0].pid, signal.SIGKILL)
            for claim in node.directory().glob("claim.*") if moments.random() < 0.7 else ():
                with contextlib.suppress(ProcessLookupError, ValueError, KeyError):
                    os.kill(json.loads(claim.read_text())["pid"], signal.SIGKILL)
            for caller in callers:
                with caller:
                    caller.wait()

        node.call("start", node.start_request(spec))
        status = node.ended()

        lines = node.log().splitlines()
        assert lines == ["ran"] or (lines == [] and status["status"] == "TRAINING_JOB_LOST")
        assert status["status"] in {"TRAINING_JOB_COMPLETED", "TRAINING_JOB_LOST"}


def test_a_stop_during_deployment_ends_the_run(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    node.upload_code({"x": ""})
    process = node.popen("start", node.start_request(node.spec("sleep 99")))
    wait_for(lambda: list(node.directory().glob("claim.*")) if node.directory().exists() else None)

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0})
    with process:
        process.wait()

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert node.status()["status"] not in LIVE


def test_a_supervisor_of_an_older_generation_ends(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    node.upload_code({"x": ""})
    gate = node.spec("sleep 600", key="gate")
    node.start(gate)
    follows = [{"key": "gate", "address": "job.gate"}]
    node.start(node.spec("echo old", follows=follows))
    old = node.status()["pid"]

    node.start(node.spec("echo new", generation=2))

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log() == "new\n"
    assert not is_alive(old)
    node.close()
