"""Create, inspect and delete the nodes of clusters; cache settings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.parallel import each
from trainctl.base.protocol.method import LineageRequest, NodeCacheRequest, TierConfig
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.units import parse_size
from trainctl.errors import NodeError, NodeUnreachable, StalePlan
from trainctl.ledger.state import Intent, Lookup, RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Kind, of_kind
from trainctl.model.specs.resource import CacheTier, ClusterSpec
from trainctl.plan.quarantine import CREATED, OUTPUT
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider, ResourceStatus
from trainctl.resources.agents import Agents, nodes_of, same_machine, unprovisioned_nodes

if TYPE_CHECKING:
    from trainctl.apply.step import ApplyStep, MayStop
    from trainctl.base.protocol.host import IdleShutdownSettings
    from trainctl.plan.values import Observation
    from trainctl.plugin_api.machines import Machine


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
class NodeProvisioner:
    """Creates the nodes of one step; idempotent, as existing nodes keep their keys."""

    step: ApplyStep
    cluster: ClusterSettings
    provider: Provider
    agents: Agents
    recorded: RecordedResource | None

    def make(self) -> tuple[list[Node], list[Node]]:
        """Create the reachable nodes; return them and the unreachable ones. StepFailed if all are unreachable.

        Unreachable nodes with a key may have been created.
        """
        from trainctl.apply.step import StepFailed

        before = {node.name: node for node in nodes_of(self.recorded)}
        attempted = {node.name: node for node in unprovisioned_nodes(self.recorded)}
        results = each(
            lambda node: self._node(node, before.get(node.name), attempted.get(node.name)),
            self.provider.plan(self.cluster),
            AT_ONCE,
        )
        skipped = [result for result in results if isinstance(result, _SkippedNode)]
        nodes = [node for node in results if isinstance(node, Node)]
        unreachable = [result.node for result in skipped]
        if not nodes and skipped:
            raise StepFailed(skipped[0].error, node_outputs([], unreachable))
        for node in unreachable:
            self.step.progress(f"without {node.id}, which is unreachable", 0, 0)
        return nodes, unreachable

    def _node(
        self, planned: Node, before: Node | None, attempted: Node | None
    ) -> Node | _SkippedNode:
        new_key = f"{self.step.key}/{planned.name}"
        # The key that an earlier attempt may have created the node with, or ''.
        attempted_key = new_key if self.step.resumed else ""
        if attempted is not None and attempted.key and same_machine(attempted, planned):
            attempted_key = attempted.key
        may_be_missing = self.provider.capabilities.creates_machines  # then it can't be located
        existing = before
        if not may_be_missing:
            try:
                located = self.provider.locate(self.cluster, planned)
            except NodeUnreachable as error:
                if before is not None and same_machine(before, planned):
                    return before
                return _SkippedNode(replace(planned, key=attempted_key), error)
            existing = replace(located, key=before.key) if before else None
        key = attempted_key or new_key
        if existing is not None:  # another key would create a second node
            status = self.provider.read(existing)
            if may_be_missing and status not in _OBSERVED:
                return existing
            key = existing.key if status is ResourceStatus.PRESENT else new_key
            is_reviewed = key == existing.key or key in self.step.machines
            if self.step.machines and not is_reviewed:
                raise StalePlan(f"{planned.id} is gone since the plan was made", "Plan again.")
        return self._create(planned, key)

    def _create(self, planned: Node, key: str) -> Node | _SkippedNode:
        from trainctl.base.protocol.host import IDLE_SHUTDOWN, IdleShutdownRequest

        try:
            node = self.provider.create(self.cluster, planned.name, key)
            agent = self.agents.of(self.provider.name, node)
            if not self.provider.capabilities.shares_disk_with_client:  # this machine is reachable
                agent.call(STATUS, StatusRequest(root=node.root, keys=[]))
            if self.provider.capabilities.costs_money and node.shutdown:
                settings: IdleShutdownSettings = {
                    "shutdown": [*node.shutdown],
                    "stop": [*node.stop],
                    "idle_timeout": node.idle_timeout,
                    "notice": node.details.get("notice"),
                }
                request = IdleShutdownRequest(root=node.root, settings=settings)
                agent.call(IDLE_SHUTDOWN, request)
        except NodeUnreachable as error:
            return _SkippedNode(replace(planned, key=key), error)
        return node


@dataclass(frozen=True, slots=True)
class _SkippedNode:
    node: Node
    error: NodeUnreachable


def kept_outputs(
    recorded: RecordedResource | None, nodes: Sequence[Node], now: float
) -> dict[str, Any]:
    """Return the outputs that outlive an apply: creation times of nodes, quarantine."""
    before = recorded.outputs if recorded else {}
    times = before.get(CREATED) or {}
    # Recorded nodes without a time were imported: their age is unknown.
    known = {node.key for node in nodes_of(recorded)} - times.keys()
    created = {node.key: times.get(node.key, now) for node in nodes if node.key not in known}
    kept = {CREATED: created, OUTPUT: before.get(OUTPUT)}
    return {name: value for name, value in kept.items() if value}


def node_outputs(nodes: Iterable[Node], unreachable: Iterable[Node]) -> dict[str, Any]:
    """Return the outputs of a cluster about its created nodes, and those that were unreachable."""
    documents = [node.to_json() for node in unreachable]
    skipped = {"unreachable": documents} if documents else {}
    return {"nodes": [node.to_json() for node in nodes], **skipped}


_OBSERVED = frozenset({ResourceStatus.PRESENT, ResourceStatus.MISSING})

_WORST = (
    ResourceStatus.PRESENT,
    ResourceStatus.FORBIDDEN,
    ResourceStatus.UNREACHABLE,
    ResourceStatus.MISSING,
)


class ClusterHandler:
    """Creates, inspects and deletes the nodes of a cluster."""

    def __init__(self, agents: Agents, lineage: str) -> None:
        self._agents = agents
        self._lineage = lineage

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Create missing nodes and delete surplus nodes; a replacement first deletes all."""
        from trainctl.base.protocol.weights import FORGET_CACHE

        name = step.cluster_spec.provider
        provider = self._agents.providers(name)
        cluster = ClusterSettings(
            step.address.name,
            step.cluster_spec.settings,
            lineage=self._lineage,
            planned=step.machines,
            notify=step.notify,
            cancelled=step.cancelled,
        )
        if step.action is Action.REPLACE:
            self.delete(step)
        recorded = step.recorded
        if recorded is not None and (step.action is Action.REPLACE or recorded.provider != name):
            recorded = None
        provisioner = NodeProvisioner(step, cluster, provider, self._agents, recorded)
        nodes, unreachable = provisioner.make()
        if step.recorded is not None and step.action is not Action.REPLACE:
            self._remove_others(step, step.recorded, {node.key for node in (*nodes, *unreachable)})
            before = step.recorded.cluster_spec
            moved = _cache_directories(before) != _cache_directories(step.cluster_spec)
            for node in nodes if moved else ():  # drop references to caches in previous directories
                request = LineageRequest(**cache_target(node, before), lineage=self._lineage)
                self._agents.of(step.recorded.provider, node).call(FORGET_CACHE, request)
        return node_outputs(nodes, unreachable) | kept_outputs(recorded, nodes, time.time())

    def delete(self, step: ApplyStep) -> None:
        """Delete everything of this state from the nodes; leave everything else there."""
        if step.recorded is not None:
            self._remove_others(step, step.recorded, frozenset())

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Delete unrecorded nodes of an interrupted attempt."""
        if not intent.attributes:
            return {}
        spec = ClusterSpec.from_attributes(intent.attributes)
        provider = self._agents.providers(intent.provider)
        cluster = ClusterSettings(intent.address.name, spec.settings)
        recorded = lookup(intent.address)
        recorded_keys = {node.key for node in nodes_of(recorded)}
        for planned in provider.plan(cluster):
            node = provider.find(cluster, f"{intent.key}/{planned.name}")
            if node is not None and node.key not in recorded_keys:
                self._remove(intent.provider, node, spec)
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Return the worst status of the nodes, and the nodes that became reachable."""
        from trainctl.plan.values import Observation

        provider = self._agents.providers(recorded.provider)
        nodes, unreachable = nodes_of(recorded), unprovisioned_nodes(recorded)
        read = each(provider.read, nodes, AT_ONCE)
        statuses = {node.id: status for node, status in zip(nodes, read, strict=True)}
        cluster = ClusterSettings(recorded.address.name, recorded.cluster_spec.settings)

        def is_reachable(node: Node) -> bool:
            """Whether a node was found, or a machine doesn't exist yet and its provider responds."""
            try:
                existing = _find(provider, cluster, node)
            except NodeError:
                return False
            return existing is None or provider.read(existing) in _OBSERVED

        found = zip(unreachable, each(is_reachable, unreachable, AT_ONCE), strict=True)
        recovered_nodes = tuple(node.name for node, reachable in found if reachable)
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
            missing=tuple(
                node.name for node in nodes if statuses[node.id] is ResourceStatus.MISSING
            ),
        )

    def _remove_others(self, step: ApplyStep, recorded: RecordedResource, keys: Set[str]) -> None:
        """Delete recorded nodes without these keys; try all before raising."""
        provider = self._agents.providers(recorded.provider)
        spec = recorded.cluster_spec
        cluster = ClusterSettings(recorded.address.name, spec.settings)

        def remove(node: Node) -> NodeError | None:
            try:
                existing = node if node.root else _find(provider, cluster, node)
                if existing and not self._remove(recorded.provider, existing, spec):
                    step.progress(f"deleted {node.id}, which is unreachable, without cleanup", 0, 0)
            except NodeError as error:
                return error
            return None

        attempted = [node for node in unprovisioned_nodes(recorded) if node.key]
        nodes = [node for node in (*nodes_of(recorded), *attempted) if node.key not in keys]
        errors = [error for node in nodes if (error := remove(node)) is not None]
        if errors:
            raise errors[0]

    def _remove(self, provider_name: str, node: Node, cluster: ClusterSpec) -> bool:
        """Clean up and delete a node; return False if its machine was deleted without cleanup."""
        from trainctl.base.protocol.training import REMOVE_CACHE, CacheOwnerRequest
        from trainctl.base.protocol.weights import FORGET
        from trainctl.inputs.environment import team_cache

        provider = self._agents.providers(provider_name)
        status = provider.read(node)
        disposable = provider.capabilities.creates_machines
        cleaned = status is ResourceStatus.MISSING
        if status is ResourceStatus.PRESENT:
            team = CacheOwnerRequest(
                root=node.root, directory=team_cache(node), lineage=self._lineage
            )
            weights = LineageRequest(**cache_target(node, cluster), lineage=self._lineage)
            try:
                agent = self._agents.of(provider_name, node)
                agent.call(REMOVE_CACHE, team)
                agent.call(FORGET, weights)
                cleaned = True
            except NodeUnreachable:
                if not disposable:
                    raise
        elif not cleaned and not (disposable and status is ResourceStatus.UNREACHABLE):
            raise NodeError(
                f"node {node.id} is {status}",
                f"Nothing was removed from the node. Try again when it is reachable, or remove it from the state: trainctl nodes forget {node.id}.",
            )
        # Keeps directories that other states use. An interrupted attempt may have left something of a missing node.
        provider.delete(node)
        return cleaned


def _find(provider: Provider, cluster: ClusterSettings, node: Node) -> Node | None:
    """Return a node without recorded paths; None if its machine was never created."""
    if provider.capabilities.creates_machines:
        return provider.find(cluster, node.key) if node.key else None
    return provider.locate(cluster, node)


def _cache_directories(cluster: ClusterSpec) -> tuple[str | None, str | None]:
    """Return the weights cache directories of each node, and of all nodes together."""
    shared = shared_settings(cluster)
    return cache_settings(cluster)["dir"], shared["dir"] if shared else None


@dataclass(frozen=True, slots=True)
class OrphanedMachine:
    """A machine with its provider's name, and its cost since launch, None if unknown.

    ``of_this_state``: whether an apply with this state created it. ``error``: why it could not be ended.
    """

    provider: str
    machine: Machine
    of_this_state: bool
    cost: float | None = None
    ended: bool = False
    error: str = ""


def is_orphaned(state: State, machine: Machine) -> bool:
    """Whether no node has the machine, and no apply that is running or was interrupted created it.

    The next apply uses or deletes the machines of an interrupted one.
    """
    key = machine.node.key
    attempts = (
        intent
        for address in (*state.open_intents, *state.orphaned_intents)
        for intent in state.attempts(address)
    )
    is_attempted = any(key.startswith(f"{intent.key}/") for intent in attempts)
    clusters = of_kind(state.external, Kind.CLUSTER)
    nodes = [node for item in clusters for node in (*nodes_of(item), *unprovisioned_nodes(item))]
    return not is_attempted and key not in {node.key for node in nodes}


def cost_since(start: float | None, price: float | None, now: float) -> float | None:
    """Return the cost until now; None if start or price per hour is unknown. Times in Unix seconds."""
    if start is None or price is None:
        return None
    return max(0.0, now - start) / 3600 * price
