"""Training caches: read-write directories on a cluster, of one project or of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainctl.apply.step import ApplyStep, Lookup, MayStop
from trainctl.base.protocol.caches import MAKE_CACHE, REMOVE_CACHE, CacheOwnerRequest
from trainctl.base.protocol.method import Method
from trainctl.errors import NodeUnreachable, TrainctlError
from trainctl.jobs.environment import team_cache
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.specs.resource import CacheSpec
from trainctl.plan.values import Observation
from trainctl.plugin_api.provider import Node, ResourceStatus
from trainctl.resources.agents import Agents, nodes_of


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """The node that keeps a cache, and the directories there that it refers to: its own first."""

    provider: str
    node: Node
    directories: tuple[str, ...]


class CacheHandler:
    """Makes a cache's directory on each of its cluster's nodes; the last state that refers to it takes it along.

    A node that can't be reached gets it with the first run that comes there (``ensure_cache_on``). A project's cache refers to the team's default one as well, so that this goes with the last project.
    """

    def __init__(self, agents: Agents, lineage: str) -> None:
        self._agents = agents
        self._lineage = lineage

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Make the directory, or find it there; a replacement removes the old one with what jobs kept in it."""
        if step.action is Action.REPLACE:
            self.delete(step)
        cluster = step.needed(step.cache_spec.cluster_address)
        made: list[str] = []
        unreachable: list[NodeUnreachable] = []
        for location in _cache_locations(cluster, step.cache_spec):
            try:
                self.make_on(step.address, location)
                made.append(location.node.name)
            except NodeUnreachable as error:
                unreachable.append(error)
        if not made and unreachable:
            raise unreachable[0]
        return {"directory": _cache_directory(_first_node(cluster), step.cache_spec), "on": made}

    def delete(self, step: ApplyStep) -> None:
        """Let go of its directories; those that nobody else refers to go with what jobs kept in them."""
        recorded = step.recorded
        first = find_cache_location(recorded, step.lookup) if recorded else None
        if recorded is None or first is None:
            return
        self._call_node(REMOVE_CACHE, step.address, first)
        cluster = step.needed(recorded.cache_spec.cluster_address)
        for location in _cache_locations(cluster, recorded.cache_spec)[1:]:
            self._call_node(REMOVE_CACHE, step.address, location)

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """A directory that an interrupted creation made is found again, or goes with the cluster."""
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """A cache's content belongs to its jobs; there is nothing to compare."""
        return Observation(ResourceStatus.PRESENT)

    def make_on(self, address: Address, location: CacheLocation) -> None:
        """Make its directories on one node, or find them there."""
        self._call_node(MAKE_CACHE, address, location)

    def _call_node(
        self, method: Method[CacheOwnerRequest, Any], address: Address, location: CacheLocation
    ) -> None:
        for directory in location.directories:
            request = CacheOwnerRequest(
                root=location.node.root,
                directory=directory,
                lineage=self._lineage,
                owner=address.name,
            )
            self._agents.of(location.provider, location.node).call(method, request)


def ensure_cache_on(
    agents: Agents, lineage: str, cache: RecordedResource, provider: str, node: Node
) -> None:
    """Make a recorded cache on a node that was not there, or away, when the others got theirs."""
    made = cache.outputs.get("on")
    if made is not None and node.name not in made:
        directories = _with_team(node, _cache_directory(node, cache.cache_spec), cache.cache_spec)
        location = CacheLocation(provider, node, directories)
        CacheHandler(agents, lineage).make_on(cache.address, location)


def directory_on(node: Node, cache: RecordedResource | None) -> str | None:
    """Where a recorded cache lies on a node of its cluster; None without one."""
    return _cache_directory(node, cache.cache_spec) if cache else None


def _cache_locations(cluster: RecordedResource, cache: CacheSpec) -> list[CacheLocation]:
    """Every node keeps one of its own; where ``dir`` names a directory that they share, they keep the same."""
    return [
        CacheLocation(
            cluster.provider, node, _with_team(node, _cache_directory(node, cache), cache)
        )
        for node in nodes_of(cluster)
    ]


def _cache_directory(node: Node, cache: CacheSpec) -> str:
    return cache.dir or _default_directory(node, cache)


def find_cache_location(cache: RecordedResource, lookup: Lookup) -> CacheLocation | None:
    """Who keeps a recorded cache; None if it was never made, or its cluster is gone."""
    cluster = lookup(cache.cache_spec.cluster_address)
    directory = cache.outputs.get("directory")
    if cluster is None or not directory or not nodes_of(cluster):
        return None
    node = _first_node(cluster)
    return CacheLocation(cluster.provider, node, _with_team(node, str(directory), cache.cache_spec))


def other_cache_locations(cache: RecordedResource, lookup: Lookup) -> list[CacheLocation]:
    """The cluster's other nodes that have a cache of that name: their own, or the same where ``dir`` names a directory that they share."""
    cluster = lookup(cache.cache_spec.cluster_address)
    made = cache.outputs.get("on")
    keepers = _cache_locations(cluster, cache.cache_spec)[1:] if cluster else []
    return [keeper for keeper in keepers if made is None or keeper.node.name in made]


def _with_team(node: Node, directory: str, cache: CacheSpec) -> tuple[str, ...]:
    return (directory,) if cache.scope == "team" else (directory, team_cache(node))


def _default_directory(node: Node, cache: CacheSpec) -> str:
    if cache.scope == "team":
        return team_cache(node)
    return str(PurePosixPath(node.root) / "caches" / str(cache.project))


def _first_node(cluster: RecordedResource) -> Node:
    nodes = nodes_of(cluster)
    if not nodes:
        raise TrainctlError(f"{cluster.address} has no node for a cache", code="too-few-nodes")
    return nodes[0]
