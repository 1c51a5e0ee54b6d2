"""Clusters whose machines don't exist before they are created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.node_program.agents import fork_local_nodes
from tests.unit.resources.test_clusters import Away, Lab
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.model.action import Action
from trainctl.plugin_api.provider import Capabilities, ClusterSettings, Node, ResourceStatus
from trainctl.resources.agents import nodes_of, recorded_or_planned, unprovisioned_nodes


class Cloud(Away):
    """A provider that creates machines; without one, nothing can be located."""

    capabilities = Capabilities(creates_machines=True, shares_disk_with_client=True)

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        """See Provider."""
        raise NodeUnreachable(f"{node.id} has no machine")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A cluster of created machines; none exists."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    fork_local_nodes(monkeypatch)
    lab = Lab(tmp_path / "cache")
    lab.provider.__class__ = Cloud
    yield lab
    lab.agents.close()


def test_machines_are_created_without_being_located(lab: Lab) -> None:
    """Existing machines keep their keys, and a vanished machine gets a new one."""
    lab.make("one", Action.CREATE)
    made = lab.make("two", nodes=2)
    assert [node.key for node in nodes_of(made)] == ["one/lab-0", "two/lab-1"]
    lab.provider.delete(nodes_of(made)[0])
    made = lab.make("three", nodes=2)
    assert [node.key for node in nodes_of(made)] == ["three/lab-0", "two/lab-1"]
    lab.destroy()
    assert lab.left == []


def test_an_unreachable_machine_is_kept_by_an_update(lab: Lab) -> None:
    """Only a machine known to be gone is created again."""
    lab.make("one", Action.CREATE, nodes=2)
    lab.provider.unreachable = {"lab-0"}
    made = lab.make("two", nodes=2)
    assert [node.key for node in nodes_of(made)] == ["one/lab-0", "one/lab-1"]


def test_an_unreachable_machine_is_deleted_without_cleanup(lab: Lab) -> None:
    """It would go on costing money; the output says that nothing was cleaned up."""
    lab.make("one", Action.CREATE, nodes=2)
    lab.provider.unreachable = {"lab-0"}
    lines: list[str] = []
    step = lab.step("end", Action.DELETE)
    lab.handler.delete(replace(step, progress=lambda phase, done, total: lines.append(phase)))
    assert lab.left == []
    assert lines == ["deleted lab/lab-0, which is unreachable, without cleanup"]


def test_a_machine_that_stops_responding_during_cleanup_is_deleted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider still reports it as present."""
    lab.make("one", Action.CREATE)

    def refuse(*_: object) -> None:
        raise NodeUnreachable("connection refused")

    monkeypatch.setattr(lab.handler, "_clean_up", refuse)
    lab.destroy()
    assert lab.left == []


def test_a_machine_without_access_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing permission doesn't mean that the machine is dead."""
    lab.make("one", Action.CREATE)
    monkeypatch.setattr(lab.provider, "read", lambda node: ResourceStatus.FORBIDDEN)
    with pytest.raises(NodeError, match="forbidden"):
        lab.destroy()
    assert lab.left == ["lab-0"]


def test_a_machine_that_never_responded_is_found_by_its_key(lab: Lab) -> None:
    """It is deleted with its cluster, or taken over by the next apply."""
    lab.provider.dying = {"lab-0"}
    made = lab.make("one", Action.CREATE, nodes=2)
    assert [node.key for node in unprovisioned_nodes(made)] == ["one/lab-0"]
    assert lab.look() == (ResourceStatus.PRESENT, ("lab-0",))
    lab.destroy()
    assert lab.left == []


def test_a_node_planned_without_an_address_is_the_recorded_one(lab: Lab) -> None:
    """Its address is known only once its machine was created."""
    made = lab.make("one", Action.CREATE)
    (node,) = nodes_of(made)
    planned = replace(node, address="", root="", key="", details={})
    assert recorded_or_planned(planned, made) == node
