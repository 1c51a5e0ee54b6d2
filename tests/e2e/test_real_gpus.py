"""A real NVIDIA GPU under the ``local`` provider: seen, claimed, measured, shared, and trained on; for machines that have one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, project

COMPLETED = "TRAINING_JOB_COMPLETED"
RUNNING = "TRAINING_JOB_RUNNING"

TRAIN = """\
import os, pathlib, time
import torch
from torch import nn

STEPS, EVERY = 200, 20
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
device = torch.device("cuda")
print("gpus", torch.cuda.device_count(), os.environ["BT_NUM_GPUS"], flush=True)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
folder = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"])
done = sorted(folder.glob("checkpoint-*/state.pt"), key=lambda path: int(path.parent.name.split("-")[1]))
start = 0
if done:
    state = torch.load(done[-1], map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
    print("resumed at", start, flush=True)
for step in range(start + 1, STEPS + 1):
    if step == int(os.environ["WAITS_AT"]) and not done:
        print("waiting to be killed", os.getpid(), flush=True)
        while True:
            time.sleep(1)
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(step)).to(device)
    loss = ((model(x) - x.flip(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        print("first loss", loss.item(), flush=True)
    if step % EVERY == 0:
        partial = folder / f".partial-{step}"
        partial.mkdir(parents=True, exist_ok=True)
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial / "state.pt")
        partial.rename(folder / f"checkpoint-{step}")
print("final loss", loss.item().hex(), flush=True)
"""
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
    retry: {max_attempts: 2, delay: 0s}
    runtime:
      start_commands: ["COMMAND"]
      environment_variables: {WAITS_AT: "STEP", CUBLAS_WORKSPACE_CONFIG: ":4096:8"}
      checkpointing_config: {enabled: true}
"""


def job(name: str, kind: str, command: str, *, count: int = 1, waits: int = 0) -> str:
    """A job of the manifest that wants GPUs."""
    text = JOB.replace("NAME", name).replace("ACCELERATOR", kind).replace("COUNT", str(count))
    return text.replace("COMMAND", f"{sys.executable} {command}").replace("STEP", str(waits))


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
    """A project with the programs."""
    with project(tmp_path) as made:
        made.write({"src/train.py": TRAIN, "src/busy.py": BUSY})
        yield made


@pytest.fixture
def gate(work: ProjectHarness) -> Path:
    """When this file is there, whoever computes for nothing stops."""
    return work.directory.parent / "gate"


def declare(work: ProjectHarness, gpus: list[str], *jobs: str) -> None:
    """A manifest of these jobs, on a cluster that has the machine's GPUs."""
    manifest = MANIFEST.replace("COUNT", str(len(gpus))) + "".join(jobs)
    work.write({"trainctl.yaml": manifest})


def kind_of(gpus: list[str]) -> str:
    """The accelerator's name in a manifest: the word with digits of ``NVIDIA H100 80GB HBM3``."""
    return next(word for word in gpus[0].split() if any(letter.isdigit() for letter in word))


def status(work: ProjectHarness, name: str) -> str:
    """That of the job's newest run."""
    found: str = work.json("status", name)["status"]
    return found


def test_they_are_seen(work: ProjectHarness, gpus: list[str]) -> None:
    """`nodes` has their names and memory, and a plan knows when others are wanted than there are."""
    kind = kind_of(gpus)
    other = kind.replace("1", "9") + "X"
    declare(work, gpus, job("sft", other, "train.py"))

    wanting = work.json("plan", code=None)["diagnostics"]
    declare(work, gpus, job("sft", kind, "train.py", count=len(gpus)))
    work.run("plan")
    host = work.json("nodes")["nodes"][0]

    assert [one["summary"] for one in wanting if one["severity"] == "error"] == [
        f"each node needs 1 {other} GPU: lab/lab-0 has {len(gpus)} × {gpus[0]}"
    ]
    assert [one["name"] for one in host["gpus"]] == gpus
    assert all(one["memory_mib"] > 1024 for one in host["gpus"])


def test_a_job_that_is_killed_on_the_gpu_ends_where_an_uninterrupted_one_does(
    work: ProjectHarness, gpus: list[str]
) -> None:
    """The same loss to the last bit, by deterministic kernels, after SIGKILL and a retry from its newest checkpoint."""
    kind = kind_of(gpus)
    plain, killed = job("plain", kind, "train.py"), job("killed", kind, "train.py", waits=70)
    declare(work, gpus, plain, killed)
    work.run("apply", "--auto-approve")

    def waiting() -> str | None:
        lines = work.run("logs", "killed", code=None).stdout.splitlines()
        return next((one for one in lines if one.startswith("waiting to be killed")), None)

    os.kill(int(wait_for(waiting, 300).split()[-1]), signal.SIGKILL)
    wait_for(lambda: status(work, "killed") == COMPLETED, 300)
    wait_for(lambda: status(work, "plain") == COMPLETED, 300)
    logs = {name: work.run("logs", name).stdout.splitlines() for name in ("plain", "killed")}

    assert logs["plain"][0] == "gpus 1 1"
    assert "resumed at 60" in logs["killed"]
    assert logs["plain"][-1].startswith("final loss ")
    assert logs["killed"][-1] == logs["plain"][-1]


def test_claims_hold_and_what_a_job_uses_is_measured(
    work: ProjectHarness, gpus: list[str], gate: Path
) -> None:
    """A second job waits until the first leaves the GPUs, which `metrics` shows at work."""
    kind, all_of_them = kind_of(gpus), len(gpus)
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
    holders = [one["claimed_by"] for one in work.json("nodes")["nodes"][0]["gpus"]]
    gate.touch()

    assert f"waits for {all_of_them} of {all_of_them} GPU" in waits
    assert all("first" in str(one) for one in holders)
    wait_for(lambda: status(work, "second") == COMPLETED, 300)


def test_a_gpu_on_which_a_stranger_computes_is_not_taken(
    work: ProjectHarness, gpus: list[str], gate: Path
) -> None:
    """A process that knows nothing of claims keeps its GPU until it ends; then the run that waited starts."""
    kind, stop = kind_of(gpus), work.directory.parent / "stop"
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
    wait_for(lambda: status(work, "sft") == COMPLETED, 300)
