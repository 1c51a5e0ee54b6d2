"""A real PyTorch job: killed and resumed from its checkpoint, on the host and in a container, it ends where one that was never interrupted ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.containers import Engine
from tests.support.nodes import wait_for
from tests.support.project import Project
from tests.support.pytorch import python_image, pytorch, site_packages

TRAIN = """\
import os, pathlib, time
import torch
from torch import nn

STEPS, EVERY = 120, 20
torch.manual_seed(7)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
text = torch.tensor(list(pathlib.Path("/app/data/services").read_bytes()))
letters, text = torch.unique(text, return_inverse=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(letters), 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, len(letters))

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
folder = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"])
done = sorted(folder.glob("checkpoint-*/state.pt"), key=lambda path: int(path.parent.name.split("-")[1]))
start = 0
if done:
    state = torch.load(done[-1])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    start = state["step"]
    print("resumed at", start, flush=True)
for step in range(start + 1, STEPS + 1):
    if step == int(os.environ.get("WAITS_AT", 0)) and not done:
        print("waiting to be killed", flush=True)
        while True:
            time.sleep(1)
    at = torch.randint(0, len(text) - 33, (16,))
    batch = torch.stack([text[one : one + 33] for one in at])
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        print("first loss", loss.item(), flush=True)
    if step % EVERY == 0:
        partial = folder / f".partial-{step}"
        partial.mkdir(parents=True, exist_ok=True)
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "random": torch.get_rng_state()}, partial / "state.pt")
        partial.rename(folder / f"checkpoint-{step}")
print("final loss", loss.item().hex(), flush=True)
"""
MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local}}
weights:
  data: {source: "file:./data", mount_location: /app/data}
jobs:
  plain:
    code: ./src
    weights: [data]
    runtime:
      venv: VENV
      start_commands: [python train.py]
      checkpointing_config: {enabled: true}
  host:
    code: ./src
    weights: [data]
    retry: {max_attempts: 2, delay: 0s}
    runtime:
      venv: VENV
      start_commands: [python train.py]
      environment_variables: {WAITS_AT: "70"}
      checkpointing_config: {enabled: true}
  container:
    code: ./src
    weights: [data]
    image: {base_image: "IMAGE"}
    mounts: [{host_path: PACKAGES, mount_location: /opt/packages, read_only: true}]
    retry: {max_attempts: 2, delay: 0s}
    runtime:
      engine: podman
      start_commands: [python3 train.py]
      environment_variables: {WAITS_AT: "70", PYTHONPATH: /opt/packages}
      checkpointing_config: {enabled: true}
"""


def log_of(work: Project, job: str) -> str:
    """What the newest run of a job wrote, without its shell's word on what was killed."""
    lines = work.run("logs", job).stdout.splitlines()
    return "\n".join(line for line in lines if "Killed" not in line)


def trainer(work: Project) -> int | None:
    """The process that trains, as the host counts."""
    mark = str(work.directory.parent).encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            ours = mark in (path / "environ").read_bytes()
        except OSError:
            continue
        if ours and words[1:2] == [b"train.py"]:
            return int(path.name)
    return None


def killed_and_resumed(work: Project, job: str) -> str:
    """Start a job, kill its training process between two checkpoints, and wait for the end; what it wrote."""
    work.run("apply", "--auto-approve", "--target", f"job.{job}")
    wait_for(lambda: "waiting to be killed" in log_of(work, job), seconds=120)
    os.kill(wait_for(lambda: trainer(work)), signal.SIGKILL)
    ended = ("COMPLETED", "FAILED", "LOST")
    wait_for(lambda: work.json("status", job)["status"].endswith(ended), seconds=120)
    return log_of(work, job)


def final(log: str) -> str:
    """The last loss, every bit of it."""
    return log.splitlines()[-1].removeprefix("final loss ")


def test_a_killed_job_ends_where_one_that_was_never_interrupted_does(
    fresh: Project, own_podman: Engine
) -> None:
    """SIGKILL between two checkpoints, resumed from the last by the retry policy: the same loss to the last bit, on the host and in podman."""
    venv = pytorch()
    manifest = MANIFEST.replace("VENV", str(venv)).replace("IMAGE", python_image(own_podman))
    fresh.variables |= own_podman.variables
    fresh.write(
        {
            "trainctl.yaml": manifest.replace("PACKAGES", str(site_packages(venv))),
            "src/train.py": TRAIN,
            "data/services": Path("/etc/services").read_bytes(),
        }
    )
    fresh.run("apply", "--auto-approve", "--wait", "--target", "job.plain", seconds=300)
    plain = log_of(fresh, "plain")
    host = killed_and_resumed(fresh, "host")
    container = killed_and_resumed(fresh, "container")
    first = float(plain.splitlines()[0].removeprefix("first loss "))

    assert float.fromhex(final(plain)) < 0.8 * first, "it learns"
    for log in (host, container):
        assert log.splitlines()[:3] == [
            plain.splitlines()[0],
            "waiting to be killed",
            "resumed at 60",
        ]
    assert final(host) == final(plain)
    assert final(container) == final(plain)
