"""Training caches: read-write directories on nodes, per project or shared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from trainctl.apply.step import ApplyStep, MayStop
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.protocol.method import Method
from trainctl.errors import NodeUnreachable, TrainctlError
from trainctl.inputs.environment import team_cache
from trainctl.ledger.state import Intent, Lookup, RecordedResource, origin_of
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.specs.resource import CacheSpec
from trainctl.plan.values import Observation
from trainctl.plugin_api.provider import Node, ResourceStatus
from trainctl.resources.agents import Agents, nodes_of

if TYPE_CHECKING:
    from trainctl.base.protocol.training import CacheOwnerRequest


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """A node, and the cache directories there: the cache's own first."""

    provider: str
    node: Node
    directories: tuple[str, ...]


class CacheHandler:
    """Creates a cache's directory on each node; the last reference deletes it.

    An unreachable node gets it before its first run (``ensure_cache_on``).
    A project's cache also references the team's default cache, so the last project deletes that.
    """

    def __init__(self, agents: Agents, lineage: str) -> None:
        self._agents = agents
        self._lineage = lineage

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Create the directories; a replacement first deletes the old ones."""
        from trainctl.base.protocol.training import MAKE_CACHE

        if step.action is Action.REPLACE:
            self.delete(step)
        cache, recorded = step.cache_spec, step.recorded
        if recorded is not None and step.action is not Action.REPLACE:
            cache = _in_directory_of(recorded, cache)
        cluster = step.needed(cache.cluster_address)
        names: list[str] = []
        errors: list[NodeUnreachable] = []
        owner = origin_of(step.lookup, step.address)
        for location in _cache_locations(cluster, cache):
            try:
                self.call_node(MAKE_CACHE, owner, location)
                names.append(location.node.name)
            except NodeUnreachable as error:
                errors.append(error)
        if not names and errors:
            raise errors[0]
        return {"directory": _cache_directory(_first_node(cluster), cache), "on": names}

    def delete(self, step: ApplyStep) -> None:
        """Drop the references to the directories; unreferenced directories are deleted."""
        from trainctl.base.protocol.training import REMOVE_CACHE

        recorded = step.recorded
        first = find_cache_location(recorded, step.lookup) if recorded else None
        if recorded is None or first is None:
            return
        cluster, owner = step.needed(_spec(recorded).cluster_address), _origin(recorded)
        for location in (first, *_cache_locations(cluster, _spec(recorded))[1:]):
            self.call_node(REMOVE_CACHE, owner, location)

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Do nothing: the next apply reuses the directory."""
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Report the cache as present: its files belong to the jobs."""
        return Observation(ResourceStatus.PRESENT)

    def call_node(
        self, method: Method[CacheOwnerRequest, Any], address: Address, location: CacheLocation
    ) -> None:
        """Make or remove the directories on one node for a cache."""
        from trainctl.base.protocol.training import CacheOwnerRequest

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
    """Create a cache on a node that was unreachable when it was created."""
    from trainctl.base.protocol.training import MAKE_CACHE

    names = cache.outputs.get("on")
    if names is not None and node.name not in names:
        directories = _with_team(node, _cache_directory(node, _spec(cache)), cache.cache_spec)
        location = CacheLocation(provider, node, directories)
        CacheHandler(agents, lineage).call_node(MAKE_CACHE, _origin(cache), location)


def directory_on(node: Node, cache: RecordedResource | None) -> str | None:
    """Return a recorded cache's directory on a node; None without a cache."""
    return _cache_directory(node, _spec(cache)) if cache else None


def _cache_locations(cluster: RecordedResource, cache: CacheSpec) -> list[CacheLocation]:
    """Return the cache's location on each node; ``dir`` may be shared by all."""
    return [
        CacheLocation(
            cluster.provider, node, _with_team(node, _cache_directory(node, cache), cache)
        )
        for node in nodes_of(cluster)
    ]


def _spec(cache: RecordedResource) -> CacheSpec:
    return _in_directory_of(cache, cache.cache_spec)


def _in_directory_of(recorded: RecordedResource, cache: CacheSpec) -> CacheSpec:
    """Use the name that the project had when the cache was created, as its directory has it."""
    directory = recorded.outputs.get("directory")
    return replace(cache, project=PurePosixPath(directory).name) if directory else cache


def _origin(cache: RecordedResource) -> Address:
    """Return the address that the references in its directories have."""
    return origin_of(lambda _: cache, cache.address)


def _cache_directory(node: Node, cache: CacheSpec) -> str:
    if cache.dir or cache.scope == "team":
        return cache.dir or team_cache(node)
    return str(PurePosixPath(node.root) / "caches" / str(cache.project))


def find_cache_location(cache: RecordedResource, lookup: Lookup) -> CacheLocation | None:
    """Return the location of a recorded cache; None if it does not exist."""
    cluster = lookup(cache.cache_spec.cluster_address)
    directory = cache.outputs.get("directory")
    if cluster is None or not directory or not nodes_of(cluster):
        return None
    node = _first_node(cluster)
    return CacheLocation(cluster.provider, node, _with_team(node, str(directory), cache.cache_spec))


def _with_team(node: Node, directory: str, cache: CacheSpec) -> tuple[str, ...]:
    return (directory,) if cache.scope == "team" else (directory, team_cache(node))


def _first_node(cluster: RecordedResource) -> Node:
    nodes = nodes_of(cluster)
    if not nodes:
        raise TrainctlError(f"{cluster.address} has no node for a cache", code="too-few-nodes")
    return nodes[0]
