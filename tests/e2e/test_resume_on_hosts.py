"""Hosts without a common directory, where rank 0 saves: every rank resumes, wherever the run's record says that its checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshds
from tests.support.projects.project import ProjectHarness

MANIFEST = """\
project: {name: demo}
CHECKPOINTS
clusters: {lab: {provider: ssh, hosts: HOSTS}}
jobs:
  ddp:
    code: ./src
    compute: {node_count: 3}
    runtime:
      start_commands: [python3 train.py]
      checkpointing_config: {enabled: true}
"""
TRAIN = """\
import os, pathlib, random

loaded = pathlib.Path(os.environ.get("BT_LOAD_CHECKPOINT_DIR", "/nowhere")).glob("ddp/rank-0/*/model.bin")
print("loaded", [(path.parent.name, sum(path.read_bytes()) % 9973) for path in loaded], flush=True)
if os.environ["BT_NODE_RANK"] == "0":
    target = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-60")
    target.mkdir(exist_ok=True)
    (target / "model.bin").write_bytes(random.Random(7).randbytes(2**24 + 5000))
    (target / "config.json").write_text("{}")
"""


@pytest.fixture
def hosts(tmp_path: Path, fresh: ProjectHarness) -> Iterator[list[Sshd]]:
    """Three hosts that the project's user knows."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    with sshds(tmp_path, user, 3) as found:
        user.known_hosts.write_text("".join(host.known for host in found))
        yield found


def write(project: ProjectHarness, hosts: list[Sshd], checkpoints: str = "") -> None:
    named = json.dumps([host.settings for host in hosts])
    text = MANIFEST.replace("HOSTS", named).replace("CHECKPOINTS", checkpoints)
    project.write({"trainctl.yaml": text, "src/train.py": TRAIN})


def test_what_rank_0_saved_reaches_every_rank(fresh: ProjectHarness, hosts: list[Sshd]) -> None:
    write(fresh, hosts)
    fresh.run("apply", "--auto-approve", "--wait")
    out = fresh.run("run", "ddp", "--resume", "--auto-approve", "--follow", code=None)
    print(out.stdout, out.stderr)
    for rank in range(3):
        print(fresh.run("logs", "ddp", "--rank", str(rank)).stdout)
    status = fresh.json("status", "ddp")
    print(json.dumps(status["deliveries"], indent=1))
    print(fresh.run("status", "ddp").stdout)
    assert 0
