"""Machines that a provider creates: the example of a third-party provider, installed from its wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.projects.project import ProjectHarness

ROOT = Path(__file__).parents[2]
MANIFEST = """
project: {name: rented}
clusters: {lab: {provider: rented, base: %s, machine_type: %s}}
jobs:
  train:
    code: .
    runtime: {start_commands: ["echo trained"]}
"""


def test_a_machine_is_created_used_replaced_and_deleted(
    fresh: ProjectHarness, tmp_path: Path
) -> None:
    """A plan creates nothing. Another type is another machine."""
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(ROOT / "examples" / "provider", source)
    words = ("-m", "pip", "install", "-qq", "--no-build-isolation", "--no-deps", "--target")
    subprocess.run([sys.executable, *words, str(site), str(source)], check=True)
    fresh.variables["PYTHONPATH"] = str(site)
    fresh.forks = False
    machines = tmp_path / "machines"
    fresh.write({"trainctl.yaml": MANIFEST % (machines, "small")})
    assert fresh.json("nodes")["nodes"][0]["status"] == "planned"
    done = fresh.run("apply", "--auto-approve", "--wait")
    assert "3 added" in done.stdout
    assert "its machines cost money until they are destroyed" in done.stdout
    assert fresh.run("logs", "train").stdout == "trained\n"
    first = list(machines.iterdir())

    fresh.write({"trainctl.yaml": MANIFEST % (machines, "large")})
    cluster = next(c for c in fresh.json("plan")["resource_changes"] if c["type"] == "cluster")
    assert cluster["change"]["actions"] == ["delete", "create"]
    assert ["machine_type"] in cluster["change"]["replace_paths"]
    fresh.run("apply", "--auto-approve", "--wait")
    second = list(machines.iterdir())
    assert len(first) == len(second) == 1
    assert first != second

    fresh.run("destroy", "--auto-approve")
    assert list(machines.iterdir()) == []
