"""Hosts that are checked before a run: a faulty one is left out and quarantined until it is released."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.projects.project import ProjectHarness
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, price_per_hour: 3.5, hosts: HOSTS}}
jobs:
  one: {compute: {accelerator: "H100:1"}, weights: ["file:./weights"], runtime: {start_commands: ["true"]}}
  two: {compute: {accelerator: "H100:1", node_count: 2}, runtime: {start_commands: ["true"]}}
"""
WALL = "table inet wall { chain input { type filter hook input priority 0; tcp dport != 22 tcp flags & (syn|ack) == syn drop; }; }"
ECC = "GPU 0 has 2 uncorrectable ECC errors"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Two hosts with two GPUs each."""
    with host_lab(tmp_path_factory.mktemp("lab"), 2) as lab:
        yield lab


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of an operator who may log in to the hosts."""
    with client_project(lab, tmp_path) as demo:
        hosts = json.dumps([host.settings for host in lab.hosts])
        demo.write({"trainctl.yaml": MANIFEST.replace("HOSTS", hosts), "weights/word": "hello\n"})
        yield demo


def report(host: FakeHost, *, errors: int = 0) -> None:
    """From now on the first GPU of a host reports this number of errors."""
    host.gpus.report_health(errors=errors)
    health = (host.gpus.tools / "health").read_bytes()
    host.do("sh", "-c", "cat > /opt/node/bin/health", given=health)


def nodes(demo: ProjectHarness) -> dict[str, Any]:
    """The nodes by name."""
    found = demo.json("nodes")
    jsonschema.validate(found, schema("nodes"))
    return {one["name"]: one for one in found["nodes"]}


def placed(demo: ProjectHarness, job: str) -> list[str]:
    """The nodes of the newest run."""
    return [rank["node"] for rank in demo.json("status", job)["ranks"]]


def test_a_faulty_host_is_left_out_until_it_is_released(demo: ProjectHarness, lab: HostLab) -> None:
    """Another takes its place; a job that needs it fails in the plan, and after a release it has runs despite the known fault."""
    report(lab.hosts[0], errors=2)
    said = demo.run("apply", "--auto-approve", "--wait", "--target", "job.one").stderr
    assert f"avoids node lab/gpu-0: {ECC}" in said
    assert placed(demo, "job.one") == ["lab/gpu-1"]
    faulty, healthy = nodes(demo).values()
    assert faulty["quarantine"]["reason"] == ECC
    assert (healthy["quarantine"], healthy["price_per_hour"]) == (None, 3.5)
    assert healthy["cost"] is not None
    assert healthy["idle_since"] is not None
    assert faulty["idle_since"] is None
    table = demo.run("nodes").stdout
    assert f"lab/gpu-0 is quarantined: {ECC}" in table
    assert f", quarantined: {ECC}" in demo.run("state", "show", "cluster.lab").stdout

    problems = demo.json("plan", code=1)["diagnostics"]
    assert [one["code"] for one in problems] == ["node-quarantined"]
    assert "trainctl nodes release lab/gpu-0" in problems[0]["detail"]
    assert demo.actions("--target", "cluster.lab") == {}

    demo.run("nodes", "release", "lab/gpu-0")
    said = demo.run("apply", "--auto-approve", "--wait").stderr
    assert f"warning: node lab/gpu-0: {ECC}" in said
    assert placed(demo, "job.two") == ["lab/gpu-0", "lab/gpu-1"]
    actions = [one["action"] for one in demo.json("history", "cluster.lab")["entries"]]
    assert [action for action in actions if "quarantine" in action] == [
        f"lab/gpu-0 quarantined: {ECC}",
        "lab/gpu-0 released from quarantine",
    ]
    report(lab.hosts[0])


def test_hosts_of_a_gang_that_cannot_connect_are_named(demo: ProjectHarness, lab: HostLab) -> None:
    """Before weights are copied, with the port and the remedy."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft (Debian: nftables)")
    lab.hosts[1].do("nft", "-f", "-", given=WALL.encode())
    try:
        said = demo.run("apply", "--auto-approve", "--target", "job.two", code=None)
    finally:
        lab.hosts[1].do("nft", "flush", "ruleset")
    assert "node lab/gpu-1: lab/gpu-0 cannot connect to it at port " in said.stderr
    assert said.returncode != 0
    assert [one["quarantine"] for one in nodes(demo).values()] == [None, None]
