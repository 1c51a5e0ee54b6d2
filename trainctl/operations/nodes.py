"""List the nodes of clusters, and forget a lost one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainctl.base.parallel import each
from trainctl.base.protocol.host import INSPECT, InspectNodeRequest
from trainctl.errors import NodeError, TrainctlError, UsageError
from trainctl.ledger.ledger import IntentRequest
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.reports import NodeReport, format_run
from trainctl.model.specs.resource import ClusterSpec
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.provider import Node, ResourceStatus
from trainctl.resources.agents import nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import cache_target, provider_cluster
from trainctl.resources.run_control import QUERY_SECONDS, runs_of

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _NodeEntry:
    """A node, made or planned, with the provider and its cluster."""

    provider: str
    node: Node
    cluster: ClusterSpec


def inspect_nodes(workspace: Workspace) -> list[NodeReport]:
    """Every node of the state and of the manifest, by cluster and rank; one that is away is a row like the others."""
    state = workspace.ledger.state()
    known = list(_list_nodes(workspace, state))
    runs = _live_runs(state)
    found = each(lambda one: _inspect(workspace, one), known, _AT_ONCE)
    return [replace(one, runs=runs.get(one.id, ()), lineage=state.lineage) for one in found]


def forget(workspace: Workspace, name: str) -> Node:
    """Drop a node from the state without touching it. Busy while its cluster is being changed.

    The record says what was forgotten, so that a plan makes it again for as long as the manifest has it.
    """
    state = workspace.ledger.state()
    cluster, node = recorded_node(state, name)
    reason = Action.FORGET.name.lower()
    intent = workspace.ledger.begin(
        IntentRequest(cluster.address, "update", cluster.provider, cluster.key, {}, reason=reason)
    )
    recorded = workspace.ledger.recorded(cluster.address) or cluster
    left = [one.to_json() for one in nodes_of(recorded) if one.id != node.id]
    unreachable = [
        unprovisioned_node.to_json()
        for unprovisioned_node in unprovisioned_nodes(recorded)
        if unprovisioned_node.id != node.id
    ]
    forgotten = [*recorded.cluster_spec.forgotten, node.name]
    outputs = {key: value for key, value in recorded.outputs.items() if key != "unreachable"}
    changed = replace(
        recorded,
        attributes={**recorded.attributes, "forgotten": forgotten},
        outputs={**outputs, "nodes": left, **({"unreachable": unreachable} if unreachable else {})},
    )
    workspace.ledger.finish(intent, changed)
    return node


def recorded_node(state: State, name: str) -> tuple[RecordedResource, Node]:
    """A node of the state, as CLUSTER/NODE; UsageError names those there are."""
    cluster = state.resources.get(Address(Kind.CLUSTER, name.partition("/")[0]))
    known = (*nodes_of(cluster), *unprovisioned_nodes(cluster)) if cluster else ()
    node = next((one for one in known if one.id == name), None)
    if cluster is None or node is None:
        names = [node.id for one in _clusters(state) for node in nodes_of(one)]
        raise UsageError(
            f"node {name!r} is not in the state", f"In the state: {', '.join(names) or 'none'}."
        )
    return cluster, node


def live_runs_on(state: State, node: Node) -> tuple[str, ...]:
    """What is recorded as running there, in words."""
    return tuple(format_run(run) for run in _live_runs(state).get(node.id, ()))


def _clusters(state: State) -> list[RecordedResource]:
    return [one for address, one in state.resources.items() if address.kind is Kind.CLUSTER]


def _list_nodes(workspace: Workspace, state: State) -> Iterator[_NodeEntry]:
    recorded = {one.address: one for one in _clusters(state)}
    for one in recorded.values():
        yield from (_NodeEntry(one.provider, node, one.cluster_spec) for node in nodes_of(one))
    for address, resource in _declared_clusters(workspace).items():
        made = {node.name for node in nodes_of(recorded[address])} if address in recorded else ()
        cluster = provider_cluster(address.name, resource.cluster_spec)
        for node in workspace.provider(resource.provider).plan(cluster):
            if node.name not in made:
                yield _NodeEntry(resource.provider, node, resource.cluster_spec)


def _declared_clusters(workspace: Workspace) -> Mapping[Address, Any]:
    """The manifest's clusters; a manifest that is wrong or absent has none."""
    try:
        resources = workspace.desired.resources
    except TrainctlError:
        return {}
    return {address: one for address, one in resources.items() if address.kind is Kind.CLUSTER}


def _inspect(workspace: Workspace, known: _NodeEntry) -> NodeReport:
    node = known.node
    report = NodeReport(
        node.cluster,
        node.name,
        node.address,
        "planned",
        limit=cache_target(node, known.cluster)["cache"]["size"],
    )
    try:
        provider = workspace.provider(known.provider)
        if not node.key:
            node = provider.locate(provider_cluster(node.cluster, known.cluster), node)
        else:
            status = provider.read(node)
            report = replace(report, status=status.value, why=_PRESENCE_DETAILS.get(status, ""))
            if status is ResourceStatus.MISSING:
                return report
            if status is not ResourceStatus.PRESENT:
                provider.locate(provider_cluster(node.cluster, known.cluster), node)  # says why not
                return report
        request = InspectNodeRequest(**cache_target(node, known.cluster), gpus=node.gpus)
        agent = workspace.agents.ephemeral_agent(known.provider, node)
        return replace(report, found=agent.call(INSPECT, request, timeout=QUERY_SECONDS))
    except NodeError as error:
        unreachable = ResourceStatus.UNREACHABLE if error.retryable else ResourceStatus.FORBIDDEN
        known_away = report.status in (ResourceStatus.UNREACHABLE, ResourceStatus.FORBIDDEN)
        presence_told = report.status if known_away else unreachable.value
        return replace(report, status=presence_told, why=str(error))


_PRESENCE_DETAILS = {
    ResourceStatus.MISSING: "It was deleted. Apply creates it again.",
    ResourceStatus.FORBIDDEN: "It exists, but this user has no read access.",
    ResourceStatus.UNREACHABLE: "It is unreachable.",
}


def _live_runs(state: State) -> dict[str, tuple[Mapping[str, Any], ...]]:
    found: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for address, recorded in state.resources.items():
        if address.kind is Kind.JOB:
            for run in runs_of(recorded):
                if run.status.live:
                    told = {
                        "address": str(address),
                        "number": run.number,
                        "project": recorded.attributes.get("project"),
                        "lineage": state.lineage,
                    }
                    for rank in run.ranks:
                        found[rank.node] = (*found.get(rank.node, ()), told)
    return found
