"""What end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.container_fixtures import (
    engine,
    own_apptainer,
    own_docker,
    own_podman,
    own_registry,
    private_registry,
)
from tests.support.projects.project import ProjectHarness, project
from tests.support.projects.weights_project import SMALL, connect, write_weights_manifest
from tests.support.servers.hub import Hub, serve

__all__ = [
    "engine",
    "own_apptainer",
    "own_docker",
    "own_podman",
    "own_registry",
    "private_registry",
]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ProjectHarness]:
    with project(tmp_path) as created:
        yield created


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with one small repository."""
    with serve() as running:
        running.add("acme/model", SMALL)
        yield running


@pytest.fixture
def work(fresh: ProjectHarness, hub: Hub) -> ProjectHarness:
    """A project with the repository's weights, and no job yet."""
    connect(fresh, hub)
    write_weights_manifest(fresh, "hf://acme/model")
    return fresh


TRAIN = """\
import os, pathlib, sys, time

print("lr", sys.argv[1], flush=True)
with open(sys.argv[2], "a") as ledger:
    ledger.write(os.environ["BT_TRAINING_JOB_ID"] + "\\n")
weights = pathlib.Path(os.environ["TRAINCTL_WEIGHTS_TINY"])
print("weights", sorted(path.name for path in weights.iterdir()), flush=True)
checkpoint = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"]) / "checkpoint-1"
checkpoint.mkdir(parents=True)
(checkpoint / "model.bin").write_bytes((weights / "model.bin").read_bytes()[::-1])
(pathlib.Path(os.environ["BT_SCRATCH_DIR"]) / "junk").write_text("junk")
time.sleep(float(sys.argv[3]))
print("done", flush=True)
"""

MANIFEST = """\
project: {name: demo}
vars: {lr: 1e-3, seconds: 0, ledger: LEDGER}
weights:
  tiny: {source: "file:./weights", mount_location: /app/models/tiny}
jobs:
  sft:
    code: ./src
    weights: [tiny]
    runtime:
      start_commands: ["python3 train.py ${{ var.lr }} ${{ var.ledger }} ${{ var.seconds }}"]
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""


@pytest.fixture
def demo(fresh: ProjectHarness) -> ProjectHarness:
    """A project with one job; each run of it adds its id as a line to ``ledger`` beside the project."""
    ledger = fresh.directory.parent / "ledger"
    fresh.write(
        {
            "trainctl.yaml": MANIFEST.replace("LEDGER", str(ledger)),
            "src/train.py": TRAIN,
            "weights/model.bin": bytes(range(256)) * 1000,
            "weights/config.json": '{"hidden_size": 8}',
        }
    )
    return fresh


@pytest.fixture
def runs_done(demo: ProjectHarness) -> Path:
    """The file to which each run of the demo's job adds its id."""
    return demo.directory.parent / "ledger"
