"""Clusters of which a part can't be reached: the rest is made and used, and what is missing is told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.hosts import HostLab, client_project, host_lab
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

pytestmark = pytest.mark.long

PARTLY = 12
MANIFEST = """\
project: {name: demo}
mirror: {url: "file://MIRROR"}
clusters: {lab: {provider: ssh, connect_timeout: 2, hosts: HOSTS}}
jobs:
  one:
    compute: {accelerator: "H100:1"}
    weights: [{source: "file:./weights", mount_location: /app/models/tiny}]
    runtime: {start_commands: ["cat /app/models/tiny/word"], cache_config: {enabled: true}}
  all:
    compute: {node_count: COUNT, accelerator: "H100:1"}
    runtime: {start_commands: ["ls -d $BT_RW_CACHE_DIR/.trainctl-cache"], cache_config: {enabled: true}}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    with host_lab(tmp_path_factory.mktemp("lab"), 4) as lab:
        yield lab


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of an operator who may log in to the hosts."""
    with client_project(lab, tmp_path) as project:
        project.write({"weights/word": "hello\n"})
        yield project


def declare(project: ProjectHarness, lab: HostLab, count: int) -> None:
    """A job on one of so many hosts, and one on all of them."""
    hosts = json.dumps([host.settings for host in lab.hosts[:count]])
    text = MANIFEST.replace("MIRROR", str(project.mirror)).replace("HOSTS", hosts)
    project.write({"trainctl.yaml": text.replace("COUNT", str(count))})


def left(lab: HostLab) -> list[str]:
    """What is still on the hosts."""
    return [str(path) for host in lab.hosts for path in host.home.rglob("*trainctl*")]


def test_a_host_that_is_away_from_the_beginning_leaves_the_others(
    demo: ProjectHarness, lab: HostLab
) -> None:
    """The job on both nodes waits, and nothing else is planned, until the host is back."""
    declare(demo, lab, 2)
    lab.hosts[0].power_off()
    try:
        first = demo.run("apply", "--auto-approve", "--wait", code=PARTLY)
        again = demo.actions()
        demo.run("apply", "--auto-approve", "--target", "job.one")
    finally:
        lab.hosts[0].power_on()
    back = demo.actions()
    demo.run("apply", "--auto-approve", "--wait")
    log = demo.run("logs", "job.all").stdout.splitlines()
    settled = demo.actions()
    demo.run("destroy", "--auto-approve")

    assert "job.all: waits: it needs 2 nodes" in first.stdout
    assert again == {"job.all": ["create"]}
    assert back == {"cluster.lab": ["update"], "job.all": ["create"]}
    assert len(log) == 2
    assert settled == {}
    assert left(lab) == []


def test_present_gone_unreachable_and_unreadable_are_told_apart(
    demo: ProjectHarness, lab: HostLab
) -> None:
    """The node that is present is used; all nodes are destroyed once they can be reached."""
    declare(demo, lab, 4)
    demo.run("apply", "--auto-approve", "--wait")
    _, gone, away, denied = lab.hosts
    gone.do("rm", "-rf", "/root/.cache/trainctl")
    away.power_off()
    denied.do("mv", "/root/.ssh/authorized_keys", "/root/.ssh/kept")
    try:
        seen = {row["name"]: row["status"] for row in demo.json("nodes")["nodes"]}
        planned = demo.run("plan", "--replace", "job.one", code=None)
        demo.run("run", "job.one", "--auto-approve")
        wait_for(lambda: demo.json("status", "job.one")["status"] == "TRAINING_JOB_COMPLETED")
        node = demo.json("status", "job.one")["ranks"][0]["node"]
    finally:
        away.power_on()
        denied.do("mv", "/root/.ssh/kept", "/root/.ssh/authorized_keys")
    demo.run("destroy", "--auto-approve")

    assert seen == {"gpu-0": "present", "gpu-1": "missing", "gpu-2": "unreachable", "gpu-3": "forbidden"}  # fmt: skip
    words = "lab/gpu-1 is missing, lab/gpu-2 is unreachable, lab/gpu-3 is "
    assert words in planned.stdout + planned.stderr
    assert node == "lab/gpu-0"
    assert left(lab) == []
