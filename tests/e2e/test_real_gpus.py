"""A real NVIDIA GPU under the ``local`` provider: seen, claimed, measured, and shared; for machines that have one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, project

COMPLETED = "TRAINING_JOB_COMPLETED"

BUSY = """\
import os, pathlib, sys, time
import torch

square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("computes", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    square @ square
    torch.cuda.synchronize()
"""
MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: local, gpus: COUNT}}
jobs:
"""
JOB = """\
  NAME:
    code: ./src
    compute: {accelerator: "ACCELERATOR:COUNT"}
    runtime: {start_commands: ["COMMAND"]}
"""


def job(name: str, kind: str, command: str, *, count: int = 1) -> str:
    """A job of the manifest that wants GPUs."""
    text = JOB.replace("NAME", name).replace("ACCELERATOR", kind).replace("COUNT", str(count))
    return text.replace("COMMAND", f"{sys.executable} {command}")


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    """The names of this machine's GPUs; without any, or without a PyTorch that can use them, there is nothing to try."""
    if not shutil.which("nvidia-smi"):
        pytest.skip("needs an NVIDIA GPU and its driver: there is no nvidia-smi")
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs an NVIDIA GPU: {(done.stdout + done.stderr).strip()}")
    able = [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    if subprocess.run(able, capture_output=True, check=False).returncode:
        pytest.skip(f"needs a PyTorch for CUDA in {sys.executable}")
    return done.stdout.splitlines()


@pytest.fixture
def work(gpus: list[str], tmp_path: Path) -> Iterator[ProjectHarness]:
    with project(tmp_path) as created:
        created.write({"src/busy.py": BUSY})
        yield created


def declare(work: ProjectHarness, gpus: list[str], *jobs: str) -> None:
    """A manifest of these jobs, on a cluster that has the machine's GPUs."""
    manifest = MANIFEST.replace("COUNT", str(len(gpus))) + "".join(jobs)
    work.write({"trainctl.yaml": manifest})


def kind_of(gpus: list[str]) -> str:
    """The accelerator's name in a manifest: the word with digits of ``NVIDIA H100 80GB HBM3``."""
    return next(word for word in gpus[0].split() if any(letter.isdigit() for letter in word))


def test_claims_hold_and_what_a_job_uses_is_measured(work: ProjectHarness, gpus: list[str]) -> None:
    """A second job waits until the first leaves the GPUs, which `metrics` shows at work."""
    kind, all_of_them, gate = kind_of(gpus), len(gpus), work.directory.parent / "gate"
    first = job("first", kind, f"busy.py {gate}", count=all_of_them)
    declare(work, gpus, first)
    work.run("apply", "--auto-approve")
    wait_for(lambda: "computes" in work.run("logs", "first", code=None).stdout, 300)
    second = job("second", kind, f"busy.py {gate}", count=all_of_them)
    declare(work, gpus, first, second)
    work.run("apply", "--auto-approve")

    def at_work() -> bool:
        samples = work.json("metrics", "first")["samples"]
        return any(busy > 0.5 for sample in samples for busy in sample["gpu_utilization"].values())

    wait_for(at_work, 120)
    waits = work.run("status", "second").stdout
    rows = work.json("nodes")["nodes"][0]["gpus"]
    gate.touch()

    assert f"waits for {all_of_them} of {all_of_them} GPU" in waits
    assert [row["name"] for row in rows] == gpus
    assert all("first" in str(row["claimed_by"]) for row in rows)
    wait_for(lambda: work.json("status", "second")["status"] == COMPLETED, 300)


def test_a_gpu_on_which_a_stranger_computes_is_not_taken(
    work: ProjectHarness, gpus: list[str]
) -> None:
    """A process that knows nothing of claims keeps its GPU until it ends; then the run that waited starts."""
    kind, stop, gate = kind_of(gpus), work.directory.parent / "stop", work.directory.parent / "gate"
    program = work.directory / "src" / "busy.py"
    gate.touch()
    stranger = subprocess.Popen(
        [sys.executable, str(program), str(stop)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "computes\n"
        declare(work, gpus, job("sft", kind, f"busy.py {gate}", count=len(gpus)))
        work.run("apply", "--auto-approve")
        wait_for(lambda: "waits for" in work.run("status", "sft").stdout, 60)
        assert stranger.poll() is None
    finally:
        stop.touch()
        stranger.communicate()
    wait_for(lambda: work.json("status", "sft")["status"] == COMPLETED, 300)
