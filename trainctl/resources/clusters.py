"""Create, inspect and delete the nodes of clusters; cache settings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from trainctl.apply.step import ApplyStep, MayStop, StepFailed
from trainctl.base.parallel import each
from trainctl.base.protocol.host import IDLE_SHUTDOWN, IdleShutdownRequest
from trainctl.base.protocol.method import LineageRequest, NodeCacheRequest, TierConfig
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.protocol.training import REMOVE_CACHE, CacheOwnerRequest
from trainctl.base.protocol.weights import FORGET, FORGET_CACHE
from trainctl.base.units import parse_size
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.inputs.environment import team_cache
from trainctl.ledger.state import Intent, Lookup, RecordedResource
from trainctl.model.action import Action
from trainctl.model.specs.resource import CacheTier, ClusterSpec
from trainctl.plan.quarantine import CREATED, OUTPUT
from trainctl.plan.values import Observation
from trainctl.plugin_api.provider import (
    IDLE_TIMEOUT_SECONDS,
    ClusterSettings,
    Node,
    Provider,
    ResourceStatus,
)
from trainctl.resources.agents import Agents, Providers, nodes_of, same_machine, unprovisioned_nodes


def cache_settings(cluster: ClusterSpec) -> TierConfig:
    """Return the node cache's ``dir`` and ``size``; None for the defaults."""
    return _tier(cluster.cache.node)


def shared_settings(cluster: ClusterSpec) -> TierConfig | None:
    """Return the settings of the cache shared by all nodes; None without one."""
    tier = _tier(cluster.cache.cluster)
    return tier if tier["dir"] else None


def cache_target(node: Node, cluster: ClusterSpec) -> NodeCacheRequest:
    """Return the fields common to all requests about weights."""
    request = NodeCacheRequest(root=node.root, cache=cache_settings(cluster))
    if shared := shared_settings(cluster):
        request["shared"] = shared
    if rate := cluster.cache.max_rate:
        request["max_rate"] = parse_size(rate)
    return request


def _tier(cache: CacheTier | None) -> TierConfig:
    cache = cache or CacheTier()
    return {"dir": cache.dir, "size": None if cache.size is None else parse_size(cache.size)}


AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ProvisionedNodes:
    """Created and unreachable nodes; those with a key may have been created."""

    nodes: tuple[Node, ...]
    unreachable: tuple[Node, ...]

    def to_outputs(self) -> dict[str, Any]:
        """Return the outputs to record in the state."""
        unreachable = (
            {"unreachable": [node.to_json() for node in self.unreachable]}
            if self.unreachable
            else {}
        )
        return {"nodes": [node.to_json() for node in self.nodes], **unreachable}


def idle_shutdown_request(node: Node) -> IdleShutdownRequest:
    """Return the request that has a machine end itself when it is idle."""
    timeout = IDLE_TIMEOUT_SECONDS if node.idle_timeout is None else node.idle_timeout
    return IdleShutdownRequest(
        root=node.root,
        settings={
            "shutdown": [*node.shutdown],
            "stop": [*node.stop],
            "idle_timeout": timeout,
            "notice": node.details.get("notice"),
        },
    )


class NodeProvisioner:
    """Creates the nodes of one step; idempotent, as existing nodes keep their keys."""

    def __init__(
        self,
        step: ApplyStep,
        cluster: ClusterSettings,
        provider: Provider,
        agents: Agents,
        recorded: RecordedResource | None,
    ) -> None:
        self._step = step
        self._cluster = cluster
        self._provider = provider
        self._agents = agents
        self._before = {node.name: node for node in nodes_of(recorded)} if recorded else {}
        self._attempted = (
            {node.name: node for node in unprovisioned_nodes(recorded)} if recorded else {}
        )

    def make(self) -> ProvisionedNodes:
        """Create the reachable nodes; StepFailed if all are unreachable."""
        results = each(self._node, self._provider.plan(self._cluster), AT_ONCE)
        skipped = [result for result in results if isinstance(result, _SkippedNode)]
        provisioned = ProvisionedNodes(
            tuple(node for node in results if isinstance(node, Node)),
            tuple(result.node for result in skipped),
        )
        if not provisioned.nodes and skipped:
            raise StepFailed(skipped[0].error, provisioned.to_outputs())
        for result in skipped:
            self._step.progress(f"without {result.node.id}, which is unreachable", 0, 0)
        return provisioned

    def _node(self, planned: Node) -> Node | _SkippedNode:
        before = self._before.get(planned.name)
        attempted_key = self._attempted_key(planned)
        if self._provider.capabilities.creates_machines:
            return self._machine(planned, before, attempted_key)
        try:
            located = self._provider.locate(self._cluster, planned)
        except NodeUnreachable as error:
            if before is not None and same_machine(before, planned):
                return before
            return _SkippedNode(replace(planned, key=attempted_key), error)
        key = self._key(located, before) if before else attempted_key or self._new_key(planned.name)
        return self._create(planned, key)

    def _machine(
        self, planned: Node, before: Node | None, attempted_key: str
    ) -> Node | _SkippedNode:
        """Create a node whose machine need not exist yet, so that it can't be located."""
        key = attempted_key or self._new_key(planned.name)
        if before is not None:
            status = self._provider.read(before)
            if status not in _OBSERVED:
                return before
            key = before.key if status is ResourceStatus.PRESENT else self._new_key(planned.name)
        return self._create(planned, key)

    def _create(self, planned: Node, key: str) -> Node | _SkippedNode:
        try:
            node = self._provider.create(self._cluster, planned.name, key)
            agent = self._agents.of(self._provider.name, node)
            agent.call(STATUS, StatusRequest(root=node.root, keys=[]))
            if self._provider.capabilities.costs_money and node.shutdown:
                agent.call(IDLE_SHUTDOWN, idle_shutdown_request(node))
        except NodeUnreachable as error:
            return _SkippedNode(replace(planned, key=key), error)
        return node

    def _key(self, located: Node, before: Node) -> str:
        """Return the existing node's key: another key would create a second node."""
        status = self._provider.read(replace(located, key=before.key))
        return before.key if status is ResourceStatus.PRESENT else self._new_key(located.name)

    def _attempted_key(self, planned: Node) -> str:
        """Return the key that an earlier attempt may have created the node with, or ''."""
        attempted = self._attempted.get(planned.name)
        if attempted is not None and attempted.key and same_machine(attempted, planned):
            return attempted.key
        return self._new_key(planned.name) if self._step.resumed else ""

    def _new_key(self, name: str) -> str:
        return f"{self._step.key}/{name}"


@dataclass(frozen=True, slots=True)
class _SkippedNode:
    node: Node
    error: NodeUnreachable


def find_reachable(
    provider: Provider, cluster: ClusterSettings, nodes: Sequence[Node]
) -> tuple[str, ...]:
    """Return the names of the reachable nodes among nodes that were not created.

    A machine that doesn't exist yet counts as reachable if its provider responds.
    """

    def is_reachable(node: Node) -> bool:
        try:
            if provider.capabilities.creates_machines:
                machine = provider.find(cluster, node.key) if node.key else None
                return machine is None or provider.read(machine) in _OBSERVED
            provider.locate(cluster, node)
        except NodeError:
            return False
        return True

    results = zip(nodes, each(is_reachable, nodes, AT_ONCE), strict=True)
    return tuple(node.name for node, reachable in results if reachable)


def kept_outputs(
    recorded: RecordedResource | None, nodes: Sequence[Node], now: float
) -> dict[str, Any]:
    """Return the outputs that outlive an apply: creation times of nodes, quarantine."""
    before = recorded.outputs if recorded else {}
    times = before.get(CREATED) or {}
    # Recorded nodes without a time were imported: their age is unknown.
    known = {node.key for node in nodes_of(recorded)} if recorded else set()
    created = {
        node.key: times.get(node.key, now)
        for node in nodes
        if node.key in times or node.key not in known
    }
    quarantine = {OUTPUT: before[OUTPUT]} if before.get(OUTPUT) else {}
    return {CREATED: created, **quarantine} if created else quarantine


_OBSERVED = frozenset({ResourceStatus.PRESENT, ResourceStatus.MISSING})

_WORST = (
    ResourceStatus.PRESENT,
    ResourceStatus.FORBIDDEN,
    ResourceStatus.UNREACHABLE,
    ResourceStatus.MISSING,
)


class ClusterHandler:
    """Creates, inspects and deletes the nodes of a cluster."""

    def __init__(self, providers: Providers, agents: Agents, lineage: str) -> None:
        self._providers = providers
        self._agents = agents
        self._lineage = lineage

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Create missing nodes and delete surplus nodes; a replacement first deletes all."""
        name = step.cluster_spec.provider
        provider = self._providers(name)
        settings = provider_cluster(step.address.name, step.cluster_spec)
        cluster = replace(
            settings, lineage=self._lineage, notify=step.notify, cancelled=step.cancelled
        )
        if step.action is Action.REPLACE:
            self.delete(step)
        recorded = step.recorded
        if recorded is not None and (step.action is Action.REPLACE or recorded.provider != name):
            recorded = None
        provisioned = NodeProvisioner(step, cluster, provider, self._agents, recorded).make()
        if step.recorded is not None and step.action is not Action.REPLACE:
            keys = {node.key for node in (*provisioned.nodes, *provisioned.unreachable)}
            self._remove_others(step, step.recorded, keys)
            self._release_old_cache(step, step.recorded, provisioned.nodes)
        kept = kept_outputs(recorded, provisioned.nodes, time.time())
        return {**provisioned.to_outputs(), **kept}

    def delete(self, step: ApplyStep) -> None:
        """Delete everything of this state from the nodes; leave everything else there."""
        if step.recorded is not None:
            self._remove_others(step, step.recorded, frozenset())

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Delete unrecorded nodes of an interrupted attempt."""
        if not intent.attributes:
            return {}
        spec = ClusterSpec.from_attributes(intent.attributes)
        provider = self._providers(intent.provider)
        cluster = provider_cluster(intent.address.name, spec)
        recorded = lookup(intent.address)
        recorded_keys = {node.key for node in nodes_of(recorded)} if recorded else set()
        for planned in provider.plan(cluster):
            node = provider.find(cluster, f"{intent.key}/{planned.name}")
            if node is not None and node.key not in recorded_keys:
                self._remove(intent.provider, node, spec)
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Return the worst status of the nodes, and the nodes that became reachable."""
        provider = self._providers(recorded.provider)
        nodes, unreachable = nodes_of(recorded), unprovisioned_nodes(recorded)
        read = each(provider.read, nodes, AT_ONCE)
        statuses = {node.id: status for node, status in zip(nodes, read, strict=True)}
        cluster = provider_cluster(recorded.address.name, recorded.cluster_spec)
        recovered_nodes = find_reachable(provider, cluster, unreachable)
        statuses |= {
            node.id: ResourceStatus.UNREACHABLE
            for node in unreachable
            if node.name not in recovered_nodes
        }
        problems = [
            f"{node} is {status}"
            for node, status in sorted(statuses.items())
            if status is not ResourceStatus.PRESENT
        ]
        unobserved = [node for node, status in statuses.items() if status not in _OBSERVED]
        return Observation(
            max(statuses.values(), key=_WORST.index, default=ResourceStatus.PRESENT),
            detail=", ".join(problems),
            recovered_nodes=recovered_nodes,
            unobserved=tuple(unobserved),
        )

    def _remove_others(self, step: ApplyStep, recorded: RecordedResource, keys: Set[str]) -> None:
        """Delete recorded nodes without these keys; try all before raising."""
        provider = self._providers(recorded.provider)
        cluster = provider_cluster(recorded.address.name, recorded.cluster_spec)

        def remove(node: Node) -> NodeError | None:
            try:
                existing = _existing_node(provider, cluster, node)
                if existing is None:
                    return None
                if not self._remove(recorded.provider, existing, recorded.cluster_spec):
                    step.progress(f"deleted {node.id}, which is unreachable, without cleanup", 0, 0)
            except NodeError as error:
                return error
            return None

        attempted = [node for node in unprovisioned_nodes(recorded) if node.key]
        nodes = [node for node in (*nodes_of(recorded), *attempted) if node.key not in keys]
        errors = [error for node in nodes if (error := remove(node)) is not None]
        if errors:
            raise errors[0]

    def _release_old_cache(
        self, step: ApplyStep, recorded: RecordedResource, nodes: Sequence[Node]
    ) -> None:
        """Drop references to caches in previous directories."""
        if _cache_directories(recorded.cluster_spec) == _cache_directories(step.cluster_spec):
            return
        for node in nodes:
            request = LineageRequest(
                **cache_target(node, recorded.cluster_spec), lineage=self._lineage
            )
            self._agents.of(recorded.provider, node).call(FORGET_CACHE, request)

    def _remove(self, provider_name: str, node: Node, cluster: ClusterSpec) -> bool:
        """Clean up and delete a node; return False if its machine was deleted without cleanup."""
        provider = self._providers(provider_name)
        status = provider.read(node)
        disposable = provider.capabilities.creates_machines
        if status is ResourceStatus.MISSING:
            provider.delete(node)  # an interrupted attempt may have left something
            return True
        if status is ResourceStatus.UNREACHABLE and disposable:
            provider.delete(node)
            return False
        if status is not ResourceStatus.PRESENT:
            raise NodeError(
                f"node {node.id} is {status}",
                f"Nothing was removed from the node. Try again when it is reachable, or remove it from the state: trainctl nodes forget {node.id}.",
            )
        try:
            self._clean_up(provider_name, node, cluster)
        except NodeUnreachable:
            if not disposable:
                raise
            provider.delete(node)
            return False
        provider.delete(node)  # keeps directories that other states use
        return True

    def _clean_up(self, provider_name: str, node: Node, cluster: ClusterSpec) -> None:
        agent = self._agents.of(provider_name, node)
        team = CacheOwnerRequest(root=node.root, directory=team_cache(node), lineage=self._lineage)
        agent.call(REMOVE_CACHE, team)
        agent.call(FORGET, LineageRequest(**cache_target(node, cluster), lineage=self._lineage))


def _existing_node(provider: Provider, cluster: ClusterSettings, node: Node) -> Node | None:
    """Return a recorded node with its paths; None if its machine was never created."""
    if node.root:
        return node
    if provider.capabilities.creates_machines:
        return provider.find(cluster, node.key)
    return provider.locate(cluster, node)


def _cache_directories(cluster: ClusterSpec) -> tuple[str | None, str | None]:
    """Return the weights cache directories of each node, and of all nodes together."""
    shared = shared_settings(cluster)
    return cache_settings(cluster)["dir"], shared["dir"] if shared else None


def provider_cluster(name: str, cluster: ClusterSpec) -> ClusterSettings:
    """Return the settings of a cluster in the provider's form."""
    return ClusterSettings(name, cluster.settings)
