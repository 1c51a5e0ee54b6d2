"""A cluster's nodes through their life, on directories of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.agents import bytecode_cache, fork_local_nodes
from trainctl.apply.step import ApplyStep, StepFailed
from trainctl.errors import NodeError, NodeUnreachable, StalePlan
from trainctl.ledger.leases import current_holder
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plugin_api.machines import MachinePlan
from trainctl.plugin_api.provider import Capabilities, ClusterSettings, Node, ResourceStatus
from trainctl.resources.agents import Agents, nodes_of, recorded_or_planned, unprovisioned_nodes
from trainctl.resources.clusters import ClusterHandler
from trainctl_local import LocalProvider

LAB = Address.parse("cluster.lab")


class Away(LocalProvider):
    """The local provider, of whose nodes some are away: none can be located, or made and then not asked any more."""

    def __init__(self) -> None:
        super().__init__()
        self.unreachable: set[str] = set()
        self.dying: set[str] = set()

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        if node.name in self.unreachable:
            raise NodeUnreachable(f"{node.id} doesn't answer")
        return super().locate(cluster, node)

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        created = super().create(cluster, name, key)
        if name in self.dying:
            raise NodeUnreachable(f"{created.id} doesn't answer any more")
        return created

    def read(self, node: Node) -> ResourceStatus:
        return ResourceStatus.UNREACHABLE if node.name in self.unreachable else super().read(node)


class Lab:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.provider = provider = Away()
        self.agents = Agents(lambda name: provider, bytecode_cache())
        self.handler = ClusterHandler(self.agents, "lineage")
        self.recorded: RecordedResource | None = None

    def step(
        self, key: str, action: Action, *, resumed: bool = False, **settings: Any
    ) -> ApplyStep:
        attributes = {"provider": "local", "nodes": 1, "gpus": 0, "cache": None, **settings}
        return ApplyStep(
            LAB, action, key, attributes, self.recorded, (), None, lambda address: self.recorded,
            lambda phase, done, total: None, lambda address: 0.0, resumed=resumed,
        )  # fmt: skip

    def make(self, key: str, action: Action = Action.UPDATE, **settings: Any) -> RecordedResource:
        step = self.step(key, action, **settings)
        outputs = self.handler.apply(step)
        self.recorded = RecordedResource(LAB, "local", step.attributes, outputs)
        return self.recorded

    def look(self) -> tuple[ResourceStatus, tuple[str, ...]]:
        assert self.recorded is not None
        data = self.handler.read(self.recorded, lambda _: None)
        return data.status, data.recovered_nodes

    def destroy(self) -> None:
        self.handler.delete(self.step("end", Action.DELETE))

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in (self.home / "trainctl" / "nodes").glob("*"))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    fork_local_nodes(monkeypatch)
    lab = Lab(tmp_path / "cache")
    yield lab
    lab.agents.close()


def test_made_grown_shrunk_and_removed(lab: Lab) -> None:
    """Nodes that stay keep the key they were made with, so that whoever made them can remove them."""
    nodes = nodes_of(lab.make("one", Action.CREATE))
    grown = nodes_of(lab.make("two", nodes=2, gpus=1))
    assert lab.left == ["lab-0", "lab-1"]
    assert [node.key for node in grown] == ["one/lab-0", "two/lab-1"]
    assert grown[0] == replace(nodes[0], gpus=1)
    lab.make("three", nodes=1)
    assert lab.left == ["lab-0"]
    lab.destroy()
    assert lab.left == []


def test_a_replacement_leaves_nothing_of_the_old(lab: Lab) -> None:
    lab.make("one", Action.CREATE)
    mark = lab.home / "trainctl/nodes/lab-0/agent/mark"
    mark.parent.mkdir()
    mark.touch()
    (node,) = nodes_of(lab.make("two", Action.REPLACE))
    assert node.key == "two/lab-0"
    assert not mark.exists()
    lab.destroy()
    assert lab.left == []


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_gone_is_made_anew(lab: Lab, times: int) -> None:
    """With a new key, however often the step is repeated; what is still there stays as it was."""
    lab.make("one", Action.CREATE, nodes=2)
    assert lab.recorded is not None
    shutil.rmtree(lab.home / "trainctl/nodes/lab-0")
    assert lab.handler.read(lab.recorded, lambda _: None).status is ResourceStatus.MISSING
    for _ in range(times):
        outputs = lab.handler.apply(lab.step("two", Action.CREATE, nodes=2))
    lab.recorded = replace(lab.recorded, outputs=outputs)
    assert [node.key for node in nodes_of(lab.recorded)] == ["two/lab-0", "one/lab-1"]
    lab.destroy()
    assert lab.left == []


def test_an_attempt_that_nobody_recorded_is_undone_by_its_key(lab: Lab) -> None:
    """The nodes it made go; those that are recorded stay."""
    lab.make("one", Action.CREATE)
    step = lab.step("two", Action.UPDATE, nodes=2)
    lab.handler.apply(step)
    inputs = {"attributes": dict(step.attributes)}
    intent = Intent("id", LAB, "update", "local", "two", inputs, current_holder(), 0.0)
    lab.handler.undo(intent, lambda _: lab.recorded, lambda _: False)
    assert lab.left == ["lab-0"]
    lab.handler.undo(intent, lambda _: lab.recorded, lambda _: False)
    lab.destroy()
    assert lab.left == []


def test_a_node_that_is_away_leaves_the_others(lab: Lab) -> None:
    """The others are made; a look tells when it is back, and then it is made beside them. Nothing has to be removed of what never was."""
    lab.provider.unreachable = {"lab-0"}
    created = lab.make("one", Action.CREATE, nodes=2)
    assert [node.name for node in nodes_of(created)] == ["lab-1"]
    assert [(node.name, node.key) for node in unprovisioned_nodes(created)] == [("lab-0", "")]
    assert lab.look() == (ResourceStatus.UNREACHABLE, ())
    lab.destroy()
    assert lab.left == []

    lab.make("two", Action.CREATE, nodes=2)
    lab.provider.unreachable = set()
    assert lab.look() == (ResourceStatus.PRESENT, ("lab-0",))
    created = lab.make("three", nodes=2)
    assert [node.key for node in nodes_of(created)] == ["three/lab-0", "two/lab-1"]
    assert unprovisioned_nodes(created) == ()
    lab.destroy()
    assert lab.left == []


def test_without_any_node_the_step_fails_and_says_so(lab: Lab) -> None:
    """What is recorded names those that were asked for, so that a manifest that is put right leaves nothing to look for."""
    lab.provider.unreachable = {"lab-0"}
    with pytest.raises(StepFailed, match="lab-0 doesn't answer") as failed:
        lab.make("one", Action.CREATE)
    assert [node["name"] for node in failed.value.outputs["unreachable"]] == ["lab-0"]
    lab.recorded = RecordedResource(LAB, "local", {"provider": "local"}, failed.value.outputs)
    lab.destroy()
    assert lab.left == []


class Cloud(Away):
    """A provider that creates machines; without one, nothing can be located."""

    capabilities = Capabilities(creates_machines=True, shares_disk_with_client=True)

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        raise NodeUnreachable(f"{node.id} has no machine")


@pytest.fixture
def cloud(lab: Lab) -> Lab:
    lab.provider.__class__ = Cloud
    return lab


def test_machines_are_created_without_being_located(cloud: Lab) -> None:
    """Existing machines keep their keys, and a vanished machine gets a new one."""
    cloud.make("one", Action.CREATE)
    created = cloud.make("two", nodes=2)
    assert [node.key for node in nodes_of(created)] == ["one/lab-0", "two/lab-1"]
    cloud.provider.delete(nodes_of(created)[0])
    created = cloud.make("three", nodes=2)
    assert [node.key for node in nodes_of(created)] == ["three/lab-0", "two/lab-1"]
    cloud.destroy()
    assert cloud.left == []


def test_a_machine_that_vanished_after_its_plan_is_not_created_unreviewed(cloud: Lab) -> None:
    """A machine of which the plan says that it is created is."""
    created = cloud.make("one", Action.CREATE, nodes=2)
    cloud.provider.delete(nodes_of(created)[0])

    def step(node: str) -> ApplyStep:
        plan = MachinePlan(Node("lab", node, key=f"two/{node}"), "", (), "", "")
        return replace(cloud.step("two", Action.UPDATE, nodes=2), machines={plan.node.key: plan})

    with pytest.raises(StalePlan, match="lab-0 is gone since the plan was made"):
        cloud.handler.apply(step("lab-2"))
    assert cloud.left == ["lab-1"]
    cloud.handler.apply(step("lab-0"))
    assert cloud.left == ["lab-0", "lab-1"]


def test_an_unreachable_machine_is_kept_by_an_update(cloud: Lab) -> None:
    """Only a machine known to be gone is created again."""
    cloud.make("one", Action.CREATE, nodes=2)
    cloud.provider.unreachable = {"lab-0"}
    created = cloud.make("two", nodes=2)
    assert [node.key for node in nodes_of(created)] == ["one/lab-0", "one/lab-1"]


def test_an_unreachable_machine_is_deleted_without_cleanup(cloud: Lab) -> None:
    """It would go on costing money; the output says that nothing was cleaned up."""
    cloud.make("one", Action.CREATE, nodes=2)
    cloud.provider.unreachable = {"lab-0"}
    lines: list[str] = []
    step = cloud.step("end", Action.DELETE)
    cloud.handler.delete(replace(step, progress=lambda phase, done, total: lines.append(phase)))
    assert cloud.left == []
    assert lines == ["deleted lab/lab-0, which is unreachable, without cleanup"]


def test_a_machine_that_stops_responding_during_cleanup_is_deleted(
    cloud: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider still reports it as present."""
    cloud.make("one", Action.CREATE)

    def refuse(*_: object) -> None:
        raise NodeUnreachable("connection refused")

    monkeypatch.setattr(cloud.agents, "of", refuse)
    cloud.destroy()
    assert cloud.left == []


def test_a_machine_without_access_is_kept(cloud: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing permission doesn't mean that the machine is dead."""
    cloud.make("one", Action.CREATE)
    monkeypatch.setattr(cloud.provider, "read", lambda node: ResourceStatus.FORBIDDEN)
    with pytest.raises(NodeError, match="forbidden"):
        cloud.destroy()
    assert cloud.left == ["lab-0"]


def test_a_machine_that_never_responded_is_found_by_its_key(cloud: Lab) -> None:
    """It is deleted with its cluster, or taken over by the next apply."""
    cloud.provider.dying = {"lab-0"}
    created = cloud.make("one", Action.CREATE, nodes=2)
    assert [node.key for node in unprovisioned_nodes(created)] == ["one/lab-0"]
    assert cloud.look() == (ResourceStatus.PRESENT, ("lab-0",))
    cloud.destroy()
    assert cloud.left == []


def test_a_node_planned_without_an_address_is_the_recorded_one(cloud: Lab) -> None:
    """Its address is known only once its machine was created."""
    created = cloud.make("one", Action.CREATE)
    (node,) = nodes_of(created)
    planned = replace(node, address="", root="", key="", details={})
    assert recorded_or_planned(planned, created) == node
