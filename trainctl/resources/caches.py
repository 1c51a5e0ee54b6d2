"""Training caches: read-write directories on a cluster, of one project or of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainctl.apply.step import Lookup, MayStop, Step
from trainctl.base.protocol.caches import MAKE_CACHE, REMOVE_CACHE, OwnedRequest
from trainctl.base.protocol.verb import Verb
from trainctl.errors import NodeUnreachable, TrainctlError
from trainctl.jobs.environment import team_cache
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.resource import CacheSpec
from trainctl.plan.values import Observation
from trainctl.resources.agents import Agents, nodes_of
from trainctl.spi.provider import Node, Presence


@dataclass(frozen=True, slots=True)
class Keeper:
    """The node that keeps a cache, and the directories there that it refers to: its own first."""

    provider: str
    node: Node
    directories: tuple[str, ...]


class CacheHandler:
    """Makes a cache's directory on each of its cluster's nodes; the last state that refers to it takes it along.

    A node that can't be reached gets it with the first run that comes there (``have_on``). A project's cache refers to the team's default one as well, so that this goes with the last project.
    """

    def __init__(self, agents: Agents, lineage: str) -> None:
        self._agents = agents
        self._lineage = lineage

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """Make the directory, or find it there; a replacement removes the old one with what jobs kept in it."""
        if step.action is Action.REPLACE:
            self.delete(step)
        cluster = step.needed(step.cache_spec.cluster_address)
        made: list[str] = []
        away: list[NodeUnreachable] = []
        for kept in _keepers(cluster, step.cache_spec):
            try:
                self.make_on(step.address, kept)
                made.append(kept.node.name)
            except NodeUnreachable as error:
                away.append(error)
        if not made and away:
            raise away[0]
        return {"directory": _place(_first(cluster), step.cache_spec), "on": made}

    def delete(self, step: Step) -> None:
        """Let go of its directories; those that nobody else refers to go with what jobs kept in them."""
        recorded = step.recorded
        first = keeper(recorded, step.lookup) if recorded else None
        if recorded is None or first is None:
            return
        self._tell(REMOVE_CACHE, step.address, first)
        cluster = step.needed(recorded.cache_spec.cluster_address)
        for kept in _keepers(cluster, recorded.cache_spec)[1:]:
            self._tell(REMOVE_CACHE, step.address, kept)

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """A directory that an interrupted creation made is found again, or goes with the cluster."""
        return {}

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """A cache's content belongs to its jobs; there is nothing to compare."""
        return Observation(Presence.PRESENT)

    def make_on(self, address: Address, kept: Keeper) -> None:
        """Make its directories on one node, or find them there."""
        self._tell(MAKE_CACHE, address, kept)

    def _tell(self, verb: Verb[OwnedRequest, Any], address: Address, kept: Keeper) -> None:
        for directory in kept.directories:
            request = OwnedRequest(
                root=kept.node.root,
                directory=directory,
                lineage=self._lineage,
                owner=address.name,
            )
            self._agents.of(kept.provider, kept.node).call(verb, request)


def have_on(agents: Agents, lineage: str, cache: Recorded, provider: str, node: Node) -> None:
    """Make a recorded cache on a node that was not there, or away, when the others got theirs."""
    made = cache.outputs.get("on")
    if made is not None and node.name not in made:
        directories = _with_team(node, _place(node, cache.cache_spec), cache.cache_spec)
        kept = Keeper(provider, node, directories)
        CacheHandler(agents, lineage).make_on(cache.address, kept)


def directory_on(node: Node, cache: Recorded | None) -> str | None:
    """Where a recorded cache lies on a node of its cluster; None without one."""
    return _place(node, cache.cache_spec) if cache else None


def _keepers(cluster: Recorded, cache: CacheSpec) -> list[Keeper]:
    """Every node keeps one of its own; where ``dir`` names a directory that they share, they keep the same."""
    return [
        Keeper(cluster.provider, node, _with_team(node, _place(node, cache), cache))
        for node in nodes_of(cluster)
    ]


def _place(node: Node, cache: CacheSpec) -> str:
    return cache.dir or _own_place(node, cache)


def keeper(cache: Recorded, lookup: Lookup) -> Keeper | None:
    """Who keeps a recorded cache; None if it was never made, or its cluster is gone."""
    cluster = lookup(cache.cache_spec.cluster_address)
    directory = cache.outputs.get("directory")
    if cluster is None or not directory or not nodes_of(cluster):
        return None
    node = _first(cluster)
    return Keeper(cluster.provider, node, _with_team(node, str(directory), cache.cache_spec))


def other_keepers(cache: Recorded, lookup: Lookup) -> list[Keeper]:
    """The cluster's other nodes that have a cache of that name: their own, or the same where ``dir`` names a directory that they share."""
    cluster = lookup(cache.cache_spec.cluster_address)
    made = cache.outputs.get("on")
    keepers = _keepers(cluster, cache.cache_spec)[1:] if cluster else []
    return [one for one in keepers if made is None or one.node.name in made]


def _with_team(node: Node, directory: str, cache: CacheSpec) -> tuple[str, ...]:
    return (directory,) if cache.scope == "team" else (directory, team_cache(node))


def _own_place(node: Node, cache: CacheSpec) -> str:
    if cache.scope == "team":
        return team_cache(node)
    return str(PurePosixPath(node.root) / "caches" / str(cache.project))


def _first(cluster: Recorded) -> Node:
    nodes = nodes_of(cluster)
    if not nodes:
        raise TrainctlError(
            f"{cluster.address} has no node to keep a cache on", code="too-few-nodes"
        )
    return nodes[0]
