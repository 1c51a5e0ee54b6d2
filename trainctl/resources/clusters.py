"""Clusters: their nodes are made and removed through the provider, and inspected first; where they cache weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from trainctl.apply.step import ApplyStep, Lookup, MayStop, StepFailed
from trainctl.base.parallel import each
from trainctl.base.protocol.caches import REMOVE_CACHE, CacheOwnerRequest
from trainctl.base.protocol.method import LineageRequest, NodeCacheRequest, TierConfig
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.protocol.weights import FORGET, FORGET_CACHE
from trainctl.base.units import parse_size
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.jobs.environment import team_cache
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action
from trainctl.model.specs.resource import CacheTierSpec, ClusterSpec
from trainctl.plan.values import Observation
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider, ResourceStatus
from trainctl.resources.agents import Agents, Providers, nodes_of, same_machine, unprovisioned_nodes


def cache_settings(cluster: ClusterSpec) -> TierConfig:
    """``dir`` (None: under the node's ROOT) and ``size`` in bytes (None: what the disk has) of each node's cache."""
    return _tier(cluster.cache.node)


def shared_settings(cluster: ClusterSpec) -> TierConfig | None:
    """The same of the cache in a directory that all nodes see; None without one."""
    found = _tier(cluster.cache.cluster)
    return found if found["dir"] else None


def max_rate(cluster: ClusterSpec) -> int | None:
    """How many bytes a second each node may take from the mirror; None without a limit."""
    rate = cluster.cache.max_rate
    return None if rate is None else parse_size(rate)


def cache_target(node: Node, cluster: ClusterSpec) -> NodeCacheRequest:
    """What every request about weights begins with."""
    found = NodeCacheRequest(root=node.root, cache=cache_settings(cluster))
    if shared := shared_settings(cluster):
        found["shared"] = shared
    if rate := max_rate(cluster):
        found["max_rate"] = rate
    return found


def _tier(cache: CacheTierSpec | None) -> TierConfig:
    cache = cache or CacheTierSpec()
    return {"dir": cache.dir, "size": None if cache.size is None else parse_size(cache.size)}


AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ProvisionedNodes:
    """``nodes`` are there. ``unreachable`` could not be reached: what has a key may have been made by it, what has none was not."""

    nodes: tuple[Node, ...]
    unreachable: tuple[Node, ...]

    def to_outputs(self) -> dict[str, Any]:
        """The form kept in the state."""
        unreachable = (
            {"unreachable": [node.to_json() for node in self.unreachable]}
            if self.unreachable
            else {}
        )
        return {"nodes": [node.to_json() for node in self.nodes], **unreachable}


class NodeProvisioner:
    """Makes the nodes that one step asks for. A node that is there keeps the key it was made with, however often this is repeated."""

    def __init__(
        self,
        step: ApplyStep,
        cluster: ClusterSettings,
        provider: Provider,
        agents: Agents,
        known: RecordedResource | None,
    ) -> None:
        self._step = step
        self._cluster = cluster
        self._provider = provider
        self._agents = agents
        self._before = {node.name: node for node in nodes_of(known)} if known else {}
        self._tried = {node.name: node for node in unprovisioned_nodes(known)} if known else {}

    def make(self) -> ProvisionedNodes:
        """All of them that can be reached. StepFailed if none can; any other error of a node fails the step."""
        found = each(self._node, self._provider.plan(self._cluster), AT_ONCE)
        unreachable = [one for one in found if isinstance(one, _SkippedNode)]
        made = ProvisionedNodes(
            tuple(one for one in found if isinstance(one, Node)),
            tuple(one.node for one in unreachable),
        )
        if not made.nodes and unreachable:
            raise StepFailed(unreachable[0].why, made.to_outputs())
        for one in unreachable:
            self._step.progress(f"without {one.node.id}, which is unreachable", 0, 0)
        return made

    def _node(self, planned: Node) -> Node | _SkippedNode:
        before = self._before.get(planned.name)
        tried = self._tried_key(planned)
        try:
            located = self._provider.locate(self._cluster, planned)
        except NodeUnreachable as error:
            if before is not None and same_machine(before, planned):
                return before
            return _SkippedNode(replace(planned, key=tried), error)
        key = self._key(located, before) if before else tried or self._new_key(planned.name)
        try:
            node = self._provider.create(self._cluster, planned.name, key)
            self._agents.of(self._provider.name, node).call(
                STATUS, StatusRequest(root=node.root, keys=[])
            )
        except NodeUnreachable as error:
            return _SkippedNode(replace(planned, key=key), error)
        return node

    def _key(self, located: Node, before: Node) -> str:
        """The key that a node was made with, if it is there: under another it would be made once more beside itself."""
        there = self._provider.read(replace(located, key=before.key))
        return before.key if there is ResourceStatus.PRESENT else self._new_key(located.name)

    def _tried_key(self, planned: Node) -> str:
        """The key by which an earlier attempt may have made it; empty if none can have."""
        tried = self._tried.get(planned.name)
        if tried is not None and tried.key and same_machine(tried, planned):
            return tried.key
        return self._new_key(planned.name) if self._step.resumed else ""

    def _new_key(self, name: str) -> str:
        return f"{self._step.key}/{name}"


@dataclass(frozen=True, slots=True)
class _SkippedNode:
    node: Node
    why: NodeUnreachable


def find_reachable(
    provider: Provider, cluster: ClusterSettings, nodes: Sequence[Node]
) -> tuple[str, ...]:
    """The names of those nodes, none of them made, that can be reached now."""

    def look(node: Node) -> bool:
        try:
            provider.locate(cluster, node)
        except NodeError:
            return False
        return True

    answers = zip(nodes, each(look, nodes, AT_ONCE), strict=True)
    return tuple(node.name for node, there in answers if there)


_WORST = (
    ResourceStatus.PRESENT,
    ResourceStatus.FORBIDDEN,
    ResourceStatus.UNREACHABLE,
    ResourceStatus.MISSING,
)


class ClusterHandler:
    """Gives a cluster the nodes that its section asks for."""

    def __init__(self, providers: Providers, agents: Agents, lineage: str) -> None:
        self._providers = providers
        self._agents = agents
        self._lineage = lineage

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Make the nodes that are missing, remove those that are not asked for any more; a replacement removes all first."""
        name = step.cluster_spec.provider
        provider = self._providers(name)
        cluster = provider_cluster(step.address.name, step.cluster_spec)
        if step.action is Action.REPLACE:
            self.delete(step)
        kept = step.recorded
        if kept is not None and (step.action is Action.REPLACE or kept.provider != name):
            kept = None
        made = NodeProvisioner(step, cluster, provider, self._agents, kept).make()
        if step.recorded is not None and step.action is not Action.REPLACE:
            self._remove_others(
                step.recorded, {node.key for node in (*made.nodes, *made.unreachable)}
            )
            self._release_old_cache(step, step.recorded, made.nodes)
        return made.to_outputs()

    def delete(self, step: ApplyStep) -> None:
        """Leave the nodes as they were found: nothing of this state stays, and nobody else's things go."""
        if step.recorded is not None:
            self._remove_others(step.recorded, frozenset())

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Remove the nodes that an interrupted attempt made and nobody recorded."""
        if not intent.attributes:
            return {}
        spec = ClusterSpec.from_attributes(intent.attributes)
        provider = self._providers(intent.provider)
        cluster = provider_cluster(intent.address.name, spec)
        recorded = lookup(intent.address)
        kept = {node.key for node in nodes_of(recorded)} if recorded else set()
        for planned in provider.plan(cluster):
            node = provider.find(cluster, f"{intent.key}/{planned.name}")
            if node is not None and node.key not in kept:
                self._remove(intent.provider, node, spec)
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """The worst of what its nodes say, and which of those that were away when it was made can be reached now."""
        provider = self._providers(recorded.provider)
        nodes, unreachable = nodes_of(recorded), unprovisioned_nodes(recorded)
        read = each(provider.read, nodes, AT_ONCE)
        found = {node.id: one for node, one in zip(nodes, read, strict=True)}
        cluster = provider_cluster(recorded.address.name, recorded.cluster_spec)
        recovered_nodes = find_reachable(provider, cluster, unreachable)
        found |= {
            node.id: ResourceStatus.UNREACHABLE
            for node in unreachable
            if node.name not in recovered_nodes
        }
        worst = max(found.values(), key=_WORST.index, default=ResourceStatus.PRESENT)
        words = [
            f"{node} is {one}"
            for node, one in sorted(found.items())
            if one is not ResourceStatus.PRESENT
        ]
        unobserved = [
            node
            for node, one in found.items()
            if one not in (ResourceStatus.PRESENT, ResourceStatus.MISSING)
        ]
        return Observation(
            worst,
            detail=", ".join(words),
            recovered_nodes=recovered_nodes,
            unobserved=tuple(unobserved),
        )

    def _remove_others(self, recorded: RecordedResource, kept: Set[str]) -> None:
        """Remove the recorded nodes but those with these keys: all that can be, before the first error is raised."""
        provider = self._providers(recorded.provider)
        cluster = provider_cluster(recorded.address.name, recorded.cluster_spec)

        def remove(node: Node) -> NodeError | None:
            try:
                made = node if node.root else provider.locate(cluster, node)
                self._remove(recorded.provider, made, recorded.cluster_spec)
            except NodeError as error:
                return error
            return None

        tried = [node for node in unprovisioned_nodes(recorded) if node.key]
        doomed = [node for node in (*nodes_of(recorded), *tried) if node.key not in kept]
        errors = [error for node in doomed if (error := remove(node)) is not None]
        if errors:
            raise errors[0]

    def _release_old_cache(
        self, step: ApplyStep, recorded: RecordedResource, nodes: Sequence[Node]
    ) -> None:
        """Let go of the caches that the nodes had elsewhere; what live runs need of them stays until they are forgotten."""
        before, after = (_cache_directories(one.cluster_spec) for one in (recorded, step))
        if before == after:
            return
        for node in nodes:
            request = LineageRequest(
                **cache_target(node, recorded.cluster_spec), lineage=self._lineage
            )
            self._agents.of(recorded.provider, node).call(FORGET_CACHE, request)

    def _remove(self, provider_name: str, node: Node, cluster: ClusterSpec) -> None:
        provider = self._providers(provider_name)
        status = provider.read(node)
        if status is ResourceStatus.MISSING:
            provider.delete(node)  # an earlier attempt may have died before it was done
            return
        if status is not ResourceStatus.PRESENT:
            raise NodeError(
                f"node {node.id} is {status}",
                f"Nothing was removed from the node. Try again when it is reachable, or remove it from the state: trainctl nodes forget {node.id}.",
            )
        agent = self._agents.of(provider_name, node)
        team = CacheOwnerRequest(root=node.root, directory=team_cache(node), lineage=self._lineage)
        agent.call(REMOVE_CACHE, team)
        agent.call(
            FORGET,
            LineageRequest(**cache_target(node, cluster), lineage=self._lineage),
        )
        provider.delete(node)  # takes only what nobody else has a part in


def _cache_directories(cluster: ClusterSpec) -> tuple[str | None, str | None]:
    """Where weights are cached, on each node and by all together."""
    shared = shared_settings(cluster)
    return cache_settings(cluster)["dir"], shared["dir"] if shared else None


def provider_cluster(name: str, cluster: ClusterSpec) -> ClusterSettings:
    """The provider's view of a cluster."""
    return ClusterSettings(name, cluster.settings)
