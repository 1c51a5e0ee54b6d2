"""A real PyTorch job: killed and resumed from its checkpoint, on the host and in a container, it ends where one that was never interrupted ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.containers import EngineHarness
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, project
from tests.support.pytorch import python_image, pytorch, site_packages

pytestmark = pytest.mark.long

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
own = folder.glob("checkpoint-*/state.pt")
loaded = pathlib.Path(os.environ["BT_LOAD_CHECKPOINT_DIR"]).glob("*/rank-0/checkpoint-*/state.pt")
done = sorted([*own, *loaded], key=lambda path: int(path.parent.name.split("-")[1]))
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
"""
HOST = """\
  NAME:
    code: ./src
    weights: [data]
    retry: {max_attempts: ATTEMPTS, delay: 0s}
    runtime:
      venv: VENV
      start_commands: [python train.py]
      environment_variables: {WAITS_AT: "WAITS"}
      checkpointing_config: {enabled: true}
"""
CONTAINER = """\
  NAME:
    code: ./src
    weights: [data]
    image: {base_image: "IMAGE"}
    mounts: [{host_path: PACKAGES, mount_location: /opt/packages, read_only: true}]
    retry: {max_attempts: ATTEMPTS, delay: 0s}
    runtime:
      engine: podman
      start_commands: [python3 train.py]
      environment_variables: {WAITS_AT: "WAITS", PYTHONPATH: /opt/packages}
      checkpointing_config: {enabled: true}
"""
JOBS = [
    ("plain", HOST, 1, 0),
    ("host", HOST, 2, 70),
    ("container", CONTAINER, 2, 70),
    ("host-once", HOST, 1, 70),
    ("container-once", CONTAINER, 1, 70),
]
"""Name, form, attempts, and the step before which it waits to be killed."""
ONCE = ["host-once", "container-once"]
"""Those that are tried once."""


def manifest(venv: Path, image: str) -> str:
    """All jobs."""
    jobs = "".join(
        form.replace("NAME", name).replace("ATTEMPTS", str(attempts)).replace('WAITS"', f'{waits}"')
        for name, form, attempts, waits in JOBS
    )
    places = {"VENV": str(venv), "IMAGE": image, "PACKAGES": str(site_packages(venv))}
    for name, place in places.items():
        jobs = jobs.replace(name, place)
    return MANIFEST + jobs


@pytest.fixture(scope="module")
def work(
    own_podman: EngineHarness, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProjectHarness]:
    """A project in which all jobs were started, those that are tried once were killed, and ``job.plain`` was trained without an interruption."""
    with project(tmp_path_factory.mktemp("pytorch")) as made:
        made.variables |= own_podman.variables
        made.write(
            {
                "trainctl.yaml": manifest(pytorch(), python_image(own_podman)),
                "src/train.py": TRAIN,
                "data/services": Path("/etc/services").read_bytes(),
            }
        )
        made.run("apply", "--auto-approve", seconds=300)
        for job in ONCE:  # before it was quiet for so long that what it wrote last counts as whole
            wait_for(lambda: "checkpoint-40" in complete(made, job), seconds=60)  # noqa: B023
            kill(made, job)
        wait_for(lambda: ended(made, "plain"), seconds=300)
        yield made


def log_of(work: ProjectHarness, job: str) -> str:
    """What the newest run of a job wrote, without its shell's word on what was killed."""
    lines = work.run("logs", job).stdout.splitlines()
    return "\n".join(line for line in lines if "Killed" not in line)


def trainer(work: ProjectHarness, job: str) -> int | None:
    """The process that trains, as the host counts."""
    mark = str(work.directory.parent).encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            variables = (path / "environ").read_bytes()
        except OSError:
            continue
        named = f"\0BT_TRAINING_JOB_NAME={job}-".encode() in b"\0" + variables
        if named and mark in variables and words[1:2] == [b"train.py"]:
            return int(path.name)
    return None


def kill(work: ProjectHarness, job: str) -> None:
    """SIGKILL to the training process of a job that stands still between two checkpoints, and await the end of its run."""
    wait_for(lambda: "waiting to be killed" in log_of(work, job), seconds=120)
    os.kill(wait_for(lambda: trainer(work, job)), signal.SIGKILL)
    wait_for(lambda: ended(work, job), seconds=120)


def ended(work: ProjectHarness, job: str) -> bool:
    """Whether the job's newest run is over."""
    status: str = work.json("status", job)["status"]
    return status.endswith(("COMPLETED", "FAILED", "LOST"))


def complete(work: ProjectHarness, job: str) -> list[str]:
    """The complete checkpoints of a job's runs."""
    rows = work.json("checkpoints", "list", job)["checkpoints"]
    return [one["name"] for one in rows if one["state"] == "complete"]


def final(log: str) -> str:
    """The last loss, every bit of it."""
    return log.splitlines()[-1].removeprefix("final loss ")


def test_it_learns(work: ProjectHarness) -> None:
    """The loss that the others are compared with is that of a model that has learned something."""
    log = log_of(work, "plain")
    first = float(log.splitlines()[0].removeprefix("first loss "))

    assert float.fromhex(final(log)) < 0.8 * first


@pytest.mark.parametrize("job", ["host", "container"])
def test_a_killed_job_that_is_retried_ends_where_an_uninterrupted_one_does(
    work: ProjectHarness, job: str
) -> None:
    """SIGKILL between two checkpoints, taken up from the last by the retry policy: the same loss to the last bit, on the host and in podman."""
    kill(work, job)
    plain, log = log_of(work, "plain"), log_of(work, job)

    assert log.splitlines()[:3] == [plain.splitlines()[0], "waiting to be killed", "resumed at 60"]
    assert final(log) == final(plain)


@pytest.mark.parametrize("job", ONCE)
def test_a_killed_job_that_is_resumed_ends_where_an_uninterrupted_one_does(
    work: ProjectHarness, job: str
) -> None:
    """SIGKILL, and a new run by hand from the newest complete checkpoint, which is not the last that was written: the same loss to the last bit."""
    dead = work.json("status", job)
    known = complete(work, job)
    followed = work.run("run", job, "--resume", "--follow", "--auto-approve", seconds=300).stdout
    resumed = work.json("status", job)
    log = log_of(work, job)

    assert dead["status"] == "TRAINING_JOB_FAILED"
    assert known == ["checkpoint-20", "checkpoint-40"]
    assert [one["name"] for one in resumed["loaded_checkpoints"]] == ["checkpoint-40"]
    assert resumed["run"] != dead["run"]
    assert log.splitlines()[0] == "resumed at 40"
    assert log in followed
    assert final(log) == final(log_of(work, "plain"))
