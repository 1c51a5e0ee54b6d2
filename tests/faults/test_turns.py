"""Claims on GPUs while everybody wants them, supervisors die, and two users with roots of their own share the host."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.node_program.nodes import NodeHarness, nobody_prefix

# Holds a kernel lock for each GPU that it was given, as long as it lives; two with the same GPU can't both have it.
JOB = """\
import fcntl, os, sys, time
held = []
for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
    held.append(open(os.path.join(sys.argv[1], gpu), "a"))
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(99)
time.sleep(float(sys.argv[2]))
"""
GPUS = 3
RUNS = 4


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="trainctl-test-turns-"))
    base.chmod(0o777)
    gpus = FakeNvidiaGpus.make(base / "tools", GPUS)
    monkeypatch.setenv("PATH", f"{gpus.tools}:{os.environ['PATH']}")
    (base / "locks").mkdir()
    for number in range(GPUS):
        (base / "locks" / str(number)).touch()
        (base / "locks" / str(number)).chmod(0o666)
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def users(host: Path) -> Iterator[list[NodeHarness]]:
    nodes = []
    for number, prefix in enumerate(([], nobody_prefix() or [])):
        base = host / f"user-{number}"
        base.mkdir()
        base.chmod(0o777)
        python = "/usr/bin/python3" if prefix else sys.executable
        node = NodeHarness(base, python=python, prefix=prefix)
        node.upload_code({"job.py": JOB})
        nodes.append(node)
    yield nodes
    for node in nodes:
        node.close()


def begin(node: NodeHarness, host: Path, key: str, count: int, seconds: float) -> None:
    command = (
        f"{sys.executable if not node.prefix else '/usr/bin/python3'} job.py {host}/locks {seconds}"
    )
    compute = {"accelerator": f"H100:{count}"}
    node.start(node.spec(command, key=key, compute=compute, declared_gpus=None, grace_seconds=0))


def test_never_more_claims_than_gpus(host: Path, users: list[NodeHarness]) -> None:
    choose = random.Random(7)
    for number in range(RUNS):
        for node in users:
            begin(node, host, f"run-{number}", choose.choice([1, 1, 2, 3]), 0.4)
    killed: set[tuple[int, str]] = set()
    for number, node in enumerate(users):
        live = [run for run in node.runs() if run["supervised"]]
        for run in choose.sample(live, min(2, len(live))):
            os.kill(run["pid"], signal.SIGKILL)
            killed.add((number, run["key"]))

    for number, node in enumerate(users):
        for key in (f"run-{at}" for at in range(RUNS)):
            if (number, key) in killed:
                assert node.status(key)["exit_code"] != 99
            else:
                ended = node.ended(key, 120)
                assert (ended["status"], ended["exit_code"]) == ("TRAINING_JOB_COMPLETED", 0)


def test_a_claim_outlives_its_supervisor_as_long_as_the_job_does(
    host: Path, users: list[NodeHarness]
) -> None:
    node, other = users
    begin(node, host, "first", GPUS, 600)
    begin(other, host, "second", GPUS, 0)
    assert other.status("second")["status"] == "TRAINING_JOB_PENDING"
    pid = node.status("first")["pid"]

    os.kill(pid, signal.SIGKILL)

    ended = other.ended("second")
    assert (ended["status"], ended["exit_code"]) == ("TRAINING_JOB_COMPLETED", 0)
