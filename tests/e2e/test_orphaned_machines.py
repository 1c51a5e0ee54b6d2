"""Machines that cost money and that no state has: listed with their cost, and ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in
from tests.unit.views.test_json_forms import problems

ROOT = Path(__file__).parents[2]
MANIFEST = """
project: {name: rented}
clusters: {lab: {provider: listing, base: %s}}
jobs:
  train:
    code: .
    runtime: {start_commands: ["echo trained"]}
"""
PROVIDER = '''
from pathlib import Path

from trainctl.plugin_api.machines import Machine
from trainctl_rented import PRICES, RentedProvider


class ListingProvider(RentedProvider):
    """The example, which also lists its machines."""

    name = "listing"

    def create(self, cluster, name, key):
        node = super().create(cluster, name, key)
        Path(node.address, "lineage").write_text(cluster.lineage)
        return node

    def machines(self, cluster):
        self._cluster = cluster
        return [self._machine(node) for node in self.list(cluster)]

    def end(self, machine):
        self.delete(self.find(self._cluster, machine.key))

    def _machine(self, node):
        lineage = Path(node.address, "lineage").read_text()
        return Machine(
            Path(node.address).name, node.cluster, node.name, lineage, node.key, "running", "small",
            launched_at=1.7e9, price_per_hour=PRICES["small"],
        )
'''


@pytest.fixture
def project(fresh: ProjectHarness) -> ProjectHarness:
    """A project with a machine that its state has."""
    site = fresh.directory.parent / "site"
    package = site / "trainctl_listing-0.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: trainctl-listing\nVersion: 0.1\n"
    )
    entry = "[trainctl.providers]\nlisting = trainctl_listing:ListingProvider\n"
    (package / "entry_points.txt").write_text(entry)
    (site / "trainctl_listing.py").write_text(PROVIDER)
    fresh.variables["PYTHONPATH"] = f"{site}:{ROOT / 'examples' / 'provider'}"
    fresh.forks = False
    fresh.write({"trainctl.yaml": MANIFEST % machines(fresh)})
    fresh.run("apply", "--auto-approve", "--wait")
    return fresh


def create(project: ProjectHarness, lineage: str) -> None:
    """Create a machine as an apply with another state does."""
    program = (
        "from trainctl_listing import ListingProvider; from trainctl.plugin_api.provider import ClusterSettings;"
        f"cluster = ClusterSettings('lab', {{'base': {str(machines(project))!r}}}, {lineage!r});"
        "ListingProvider().create(cluster, 'lab-7', 'a-key/lab-7')"
    )
    project.run(program=("-c", program))


def machines(project: ProjectHarness) -> Path:
    return project.directory.parent / "machines"


@one_day_in(2)
def test_orphans_are_listed_and_reaped(project: ProjectHarness) -> None:
    """Not the machines of the state, and those of other states only on request."""
    assert project.json("nodes", "--orphans") == {"machines": []}
    lineage = json.loads(project.run("state", "pull").stdout)["lineage"]
    project.run("nodes", "forget", "lab/lab-0", "--auto-approve")
    create(project, "another")

    found = project.json("nodes", "--orphans")
    assert problems("machines", found) == []
    rows = {row["lineage"]: row for row in found["machines"]}
    assert rows.keys() == {lineage, "another"}
    assert [rows[lineage][name] for name in ("of_this_state", "ended")] == [True, False]
    assert "this state" in project.run("nodes", "--orphans").stdout
    project.run("nodes", "reap", code=64)  # no terminal

    ended = project.json("nodes", "reap", "--auto-approve")["machines"]
    assert [(row["lineage"], row["ended"]) for row in ended] == [(lineage, True)]
    left = project.json("nodes", "--orphans")["machines"]
    assert [row["lineage"] for row in left] == ["another"]
    project.run("nodes", "reap", "--lineage", "another", "--auto-approve")
    assert list(machines(project).iterdir()) == []
