"""Hosts that are checked before a run: a faulty one is left out and quarantined until it is released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.machines.hosts import client_project, host_lab
from tests.support.projects.project import ProjectHarness
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, price_per_hour: 3.5, hosts: HOSTS}}
jobs:
  one: {compute: {accelerator: "H100:1"}, weights: ["file:./weights"], runtime: {start_commands: ["true"]}}
  two: {compute: {accelerator: "H100:1", node_count: 2}, runtime: {start_commands: ["true"]}}
"""
ECC = "GPU 0 has 2 uncorrectable ECC errors"


def nodes(demo: ProjectHarness) -> dict[str, Any]:
    nodes = demo.json("nodes")
    jsonschema.validate(nodes, schema("nodes"))
    return {node["name"]: node for node in nodes["nodes"]}


def placed(demo: ProjectHarness, job: str) -> list[str]:
    return [rank["node"] for rank in demo.json("status", job)["ranks"]]


def test_a_faulty_host_is_left_out_until_it_is_released(tmp_path: Path) -> None:
    """Another takes its place; a job that needs it fails in the plan, and after a release it has runs despite the known fault."""
    with host_lab(tmp_path / "lab", 2) as lab, client_project(lab, tmp_path) as demo:
        hosts = json.dumps([host.settings for host in lab.hosts])
        demo.write({"trainctl.yaml": MANIFEST.replace("HOSTS", hosts), "weights/word": "hello\n"})
        gpus = lab.hosts[0].gpus
        gpus.report_health(errors=2)
        health = (gpus.tools / "health").read_bytes()
        lab.hosts[0].do("sh", "-c", "cat > /opt/node/bin/health", given=health)
        output = demo.run("apply", "--auto-approve", "--wait", "--target", "job.one").stderr
        assert f"avoids node lab/gpu-0: {ECC}" in output
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
        assert [problem["code"] for problem in problems] == ["node-quarantined"]
        assert "trainctl nodes release lab/gpu-0" in problems[0]["detail"]
        assert demo.actions("--target", "cluster.lab") == {}

        demo.run("nodes", "release", "lab/gpu-0")
        output = demo.run("apply", "--auto-approve", "--wait").stderr
        assert f"warning: node lab/gpu-0: {ECC}" in output
        assert placed(demo, "job.two") == ["lab/gpu-0", "lab/gpu-1"]
        actions = [entry["action"] for entry in demo.json("history", "cluster.lab")["entries"]]
        assert [action for action in actions if "quarantine" in action] == [
            f"lab/gpu-0 quarantined: {ECC}",
            "lab/gpu-0 released from quarantine",
        ]
