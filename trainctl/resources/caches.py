"""Training caches: one read-write directory for each project on each cluster, which its jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from trainctl.apply.step import Lookup, Step
from trainctl.errors import TrainctlError
from trainctl.jobs.environment import team_cache
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.plan.values import Observation
from trainctl.resources.agents import Agents, nodes_of
from trainctl.spi.provider import Node, Presence


class CacheHandler:
    """Makes a cache's directory on its cluster's first node and removes it with the last state that refers to it."""

    def __init__(self, agents: Agents, lineage: str) -> None:
        self._agents = agents
        self._lineage = lineage

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """Make the directory, or find it there; a replacement removes the old one with what jobs kept in it."""
        if step.action is Action.REPLACE:
            self.delete(step)
        cluster = step.needed(Address(Kind.CLUSTER, str(step.attributes["cluster"])))
        node = _keeper(cluster)
        directory = step.attributes.get("dir") or str(
            PurePosixPath(node.root) / "caches" / str(step.attributes["project"])
        )
        for made in (directory, team_cache(node)):
            request = {"root": node.root, "directory": made, "lineage": self._lineage}
            self._agents.of(cluster.provider, node).call("make_cache", request)
        return {"directory": directory}

    def delete(self, step: Step) -> None:
        """Remove the directory and what jobs kept in it, unless another state still refers to it."""
        if step.recorded is None or "directory" not in step.recorded.outputs:
            return
        cluster = step.lookup(Address(Kind.CLUSTER, str(step.recorded.attributes["cluster"])))
        if cluster is None:
            return
        node = _keeper(cluster)
        request = {
            "root": node.root,
            "directory": step.recorded.outputs["directory"],
            "lineage": self._lineage,
        }
        self._agents.of(cluster.provider, node).call("remove_cache", request)

    def abandon(self, intent: Intent, lookup: Lookup) -> None:
        """A directory that an interrupted creation made is found again, or goes with the cluster."""

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """A cache's content belongs to its jobs; there is nothing to compare."""
        return Observation(Presence.PRESENT)


def _keeper(cluster: Recorded) -> Node:
    nodes = nodes_of(cluster)
    if not nodes:
        raise TrainctlError(
            f"{cluster.address} has no node to keep a cache on", code="too-few-nodes"
        )
    return nodes[0]
