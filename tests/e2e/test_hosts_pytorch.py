"""Real PyTorch on hosts over ssh: a node is lost for good, and the job ends elsewhere where one that was never interrupted ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.machines.hosts import client_project, host_lab
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.pytorch import GLOO_TRAIN, pytorch

pytestmark = pytest.mark.long

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, connect_timeout: 2, hosts: HOSTS}}
checkpoints: {url: "file://STORE"}
jobs:
  JOB:
    code: ./src
    compute: {node_count: 2}
    retry: {max_attempts: 2, delay: 0s}
    runtime:
      venv: VENV
      start_commands: [python train.py]
      environment_variables: {WAITS: "WAITING", GLOO_SOCKET_IFNAME: eth0}
      checkpointing_config: {enabled: true}
"""


def final(work: ProjectHarness, job: str) -> set[str]:
    """The last line of every rank."""
    return {work.run("logs", job, "--rank", str(rank)).stdout.splitlines()[-1] for rank in range(2)}


def kept(work: ProjectHarness, job: str) -> set[tuple[int, str]]:
    """Rank and name of the complete checkpoints."""
    rows = work.json("checkpoints", "list", job)["checkpoints"]
    return {(row["rank"], row["name"]) for row in rows if row["complete"]}


def test_a_lost_node_costs_the_steps_since_the_newest_checkpoint(tmp_path: Path) -> None:
    """Two of three hosts train over gloo; one loses its power for good. ``reconcile`` goes on, on the two that are left, from the newest
    checkpoint that both ranks have: the same loss to the last bit, and the same parameters on both.
    """
    venv, store = pytorch(), tmp_path / "store"
    store.mkdir()
    (tmp_path / "lab").mkdir()
    (tmp_path / "work").mkdir()
    with (
        host_lab(tmp_path / "lab", 3, [venv, Path(sys.base_prefix)], [store]) as lab,
        client_project(lab, tmp_path / "work") as work,
    ):
        named = json.dumps([host.settings for host in lab.hosts])
        text = MANIFEST.replace("HOSTS", named).replace("VENV", str(venv))
        text = text.replace("STORE", str(store))
        work.write({"src/train.py": GLOO_TRAIN})
        work.write({"trainctl.yaml": text.replace("JOB", "plain").replace("WAITING", "no")})
        work.run("apply", "--auto-approve", "--wait", seconds=300)
        plain = final(work, "plain")

        work.write({"trainctl.yaml": text.replace("JOB", "lost").replace("WAITING", "yes")})
        work.run("apply", "--auto-approve", seconds=300)
        both = {(rank, f"step-{step}") for rank in range(2) for step in (10, 20)}
        wait_for(lambda: both <= kept(work, "lost"), seconds=120)
        first = work.json("status", "lost")
        lab.hosts[1].power_off()
        wait_for(lambda: lost(work), seconds=180)
        work.run("reconcile", "--once", seconds=300)
        wait_for(lambda: ended(work), seconds=120)
        last = work.json("status", "lost")

        assert [rank["node"] for rank in first["ranks"]] == ["lab/gpu-0", "lab/gpu-1"]
        assert [rank["node"] for rank in last["ranks"]] == ["lab/gpu-0", "lab/gpu-2"]
        assert last["status"] == "TRAINING_JOB_COMPLETED"
        assert last["run"] != first["run"]
        assert "resumed at" in work.run("logs", "lost", "--rank", "1").stdout
        assert len(plain) == 1
        assert final(work, "lost") == plain


def ended(work: ProjectHarness) -> bool:
    """Whether the newest run is over, well or not."""
    status: str = work.json("status", "lost")["status"]
    return status in ("TRAINING_JOB_COMPLETED", "TRAINING_JOB_FAILED")


def lost(work: ProjectHarness) -> bool:
    """Whether the run is known to be over."""
    status: str = work.json("status", "lost")["status"]
    return status == "TRAINING_JOB_LOST"
