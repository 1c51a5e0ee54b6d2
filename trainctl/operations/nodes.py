"""Nodes of clusters: list, forget, quarantine and release them; list and end orphaned machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.errors import NodeError, TrainctlError, UsageError
from trainctl.ledger.leases import current_holder
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.reports import NodeReport, NodeUsage, format_run
from trainctl.model.run import RunRecord
from trainctl.model.specs.resource import ClusterSpec, DesiredResource
from trainctl.operations.workspace import Workspace
from trainctl.plan.quarantine import (
    CREATED,
    OUTPUT,
    QuarantineEntry,
    lost_nodes,
    quarantined,
    quarantined_nodes,
)
from trainctl.plugin_api import discovery
from trainctl.plugin_api.provider import ClusterSettings, Node, ResourceStatus
from trainctl.resources.agents import node_named, nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import (
    OrphanedMachine,
    cache_target,
    cost_since,
    is_orphaned,
    node_outputs,
)
from trainctl.resources.runs.batch_runs import BatchCluster
from trainctl.resources.runs.run_control import QUERY_SECONDS, runs_of

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import Machine

_AT_ONCE = 64
"""How many nodes or machines are called at the same time."""
_STATUS_DETAILS = {
    ResourceStatus.MISSING: "It was deleted. Apply creates it again.",
    ResourceStatus.FORBIDDEN: "It exists, but this user has no read access.",
    ResourceStatus.UNREACHABLE: "It is unreachable.",
}
WATCH_SECONDS = 2.0


def report_nodes(workspace: Workspace) -> list[NodeReport]:
    """Inspect every recorded and declared node, by cluster and rank; add usage from the state."""
    state = workspace.ledger.state()
    runs, usage = _live_runs(state), node_usage(state, time.time())
    nodes = list(_list_nodes(workspace, state))
    reports = each(lambda node: _inspect(workspace, *node), nodes, _AT_ONCE)
    reports += _batch_machines(workspace, state)
    return [
        replace(
            report,
            runs=runs.get(report.id, ()),
            lineage=state.lineage,
            usage=usage.get(report.id, NodeUsage()),
        )
        for report in reports
    ]


def _batch_machines(workspace: Workspace, state: State) -> Iterator[NodeReport]:
    """Yield the machines of batch systems, as these report them."""
    for recorded in of_kind(state.external, Kind.CLUSTER):
        batch = BatchCluster.of(workspace.agents, recorded)
        if batch is None:
            continue
        try:
            machines = batch.scheduler.machines(batch.settings, batch.node)
        except NodeError:
            continue  # the report of its node says why
        for machine in machines:
            gpus = [
                {
                    "index": index,
                    "name": machine.gpu_type,
                    "claimed_by": "another job" if index < machine.gpus_used else None,
                }
                for index in range(machine.gpus)
            ]
            found = {"gpus": gpus} if machine.usable else None
            yield NodeReport(
                recorded.address.name, machine.name, "", machine.state, machine.reason, found
            )


def forget(workspace: Workspace, name: str) -> Node:
    """Remove a node from the state without touching it.

    The next plan creates it again if the manifest declares it. LockHeld while its cluster changes.
    """
    state = workspace.ledger.state()
    cluster, node = recorded_node(state, name)
    reason = Action.FORGET.name.lower()
    intent = workspace.ledger.begin(
        IntentRequest(cluster.address, "update", cluster.provider, cluster.key, {}, reason=reason)
    )
    recorded = workspace.ledger.recorded(cluster.address) or cluster
    others = {key: value for key, value in recorded.outputs.items() if key != "unreachable"}
    nodes = [item for item in nodes_of(recorded) if item.id != node.id]
    unreachable = [item for item in unprovisioned_nodes(recorded) if item.id != node.id]
    outputs = others | node_outputs(nodes, unreachable)
    forgotten = [*recorded.cluster_spec.forgotten, node.name]
    attributes = {**recorded.attributes, "forgotten": forgotten}
    workspace.ledger.finish(intent, replace(recorded, attributes=attributes, outputs=outputs))
    return node


def recorded_node(state: State, name: str) -> tuple[RecordedResource, Node]:
    """Find a recorded node by ``CLUSTER/NODE``."""
    cluster = state.resources.get(Address(Kind.CLUSTER, name.partition("/")[0]))
    known = (*nodes_of(cluster), *unprovisioned_nodes(cluster))
    node = next((item for item in known if item.id == name), None)
    if cluster is None or node is None:
        clusters = of_kind(state.external, Kind.CLUSTER)
        names = [item.id for recorded in clusters for item in nodes_of(recorded)]
        raise UsageError(
            f"node {name!r} is not in the state", f"In the state: {', '.join(names) or 'none'}."
        )
    return cluster, node


def live_runs_on(state: State, node: Node) -> tuple[str, ...]:
    """List the live runs recorded on a node."""
    return tuple(format_run(run) for run in _live_runs(state).get(node.id, ()))


def _list_nodes(workspace: Workspace, state: State) -> Iterator[tuple[str, Node, ClusterSpec]]:
    """Yield recorded and planned nodes with their providers and clusters."""
    for cluster in of_kind(state.external, Kind.CLUSTER):
        for node in nodes_of(cluster):
            yield cluster.provider, node, cluster.cluster_spec
    for resource in declared_clusters(workspace):
        names = {node.name for node in nodes_of(state.resources.get(resource.address))}
        settings = ClusterSettings(resource.address.name, resource.cluster_spec.settings)
        for node in workspace.provider(resource.provider).plan(settings):
            if node.name not in names:
                yield resource.provider, node, resource.cluster_spec


def declared_clusters(workspace: Workspace) -> list[DesiredResource]:
    """Return the declared clusters; none for an invalid or missing manifest."""
    with suppress(TrainctlError):
        return of_kind(workspace.desired.external, Kind.CLUSTER)
    return []


def _inspect(
    workspace: Workspace, provider_name: str, node: Node, cluster: ClusterSpec
) -> NodeReport:
    from trainctl.base.protocol.host import INSPECT, InspectNodeRequest

    limit = cache_target(node, cluster)["cache"]["size"]
    settings = ClusterSettings(node.cluster, cluster.settings)
    report = NodeReport(node.cluster, node.name, node.address, "planned", limit=limit)
    try:
        provider = workspace.provider(provider_name)
        if not node.key and provider.capabilities.creates_machines:
            return report
        if not node.key:
            node = provider.locate(settings, node)
        else:
            status = provider.read(node)
            report = replace(report, status=status.value, why=_STATUS_DETAILS.get(status, ""))
            if status is ResourceStatus.MISSING:
                return report
            if status is not ResourceStatus.PRESENT:
                provider.locate(settings, node)  # raises the reason
                return report
        request = InspectNodeRequest(**cache_target(node, cluster), gpus=node.gpus)
        agent = workspace.agents.of(provider_name, node, ephemeral=True)
        return replace(report, found=agent.call(INSPECT, request, timeout=QUERY_SECONDS))
    except NodeError as error:
        if report.status not in (ResourceStatus.UNREACHABLE, ResourceStatus.FORBIDDEN):
            retryable = error.retryable
            status = ResourceStatus.UNREACHABLE if retryable else ResourceStatus.FORBIDDEN
            report = replace(report, status=status.value)
        return replace(report, why=str(error))


def _live_runs(state: State) -> dict[str, tuple[Mapping[str, Any], ...]]:
    by_node: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for recorded in of_kind(state.external, Kind.JOB):
        for run in runs_of(recorded):
            row = {
                "address": str(recorded.address),
                "number": run.number,
                "project": recorded.attributes.get("project"),
                "lineage": state.lineage,
            }
            for rank in run.ranks if run.status.live else ():
                for place in {rank.node, rank.place}:
                    by_node[place] = (*by_node.get(place, ()), row)
    return by_node


def watch_nodes(
    workspace: Workspace, sleep: Callable[[float], None] = time.sleep
) -> Iterator[list[NodeReport]]:
    """Inspect all nodes every 2 s, until Ctrl-C."""
    while True:
        yield report_nodes(workspace)
        sleep(WATCH_SECONDS)


def node_usage(state: State, now: float) -> dict[str, NodeUsage]:
    """Return the usage of recorded nodes by id."""
    runs: dict[str, list[RunRecord]] = {}
    for job in of_kind(state.external, Kind.JOB):
        for run in runs_of(job):
            for name in {rank.node for rank in run.ranks}:
                runs.setdefault(name, []).append(run)
    lost = quarantined_nodes(state)
    usage: dict[str, NodeUsage] = {}
    for cluster in of_kind(state.external, Kind.CLUSTER):
        for node in nodes_of(cluster):
            created_at = (cluster.outputs.get(CREATED) or {}).get(node.key)
            price = node.price_per_hour
            price = cluster.cluster_spec.price_per_hour if price is None else price
            on_node = runs.get(node.id, ())
            ends = [run.ended_at for run in on_node if run.ended_at is not None]
            is_idle = ends and not any(run.status.live for run in on_node)
            entry = quarantined(cluster).get(node.id)
            usage[node.id] = NodeUsage(
                quarantine=lost.get(node.id),
                since=entry.since if entry else None,
                by=entry.by if entry else None,
                created_at=created_at,
                price_per_hour=price,
                cost=cost_since(created_at, price, now),
                idle_since=max(ends) if is_idle else None,
            )
    return usage


def find_orphans(workspace: Workspace, lineages: Sequence[str] = ()) -> list[OrphanedMachine]:
    """List machines that the state doesn't have, by provider and launch; note providers that list none.

    Those of other states are included, as such a state may be lost. ``lineages`` selects some; '' is this state's.
    """
    from trainctl.plugin_api.machines import ListsMachines

    found: dict[tuple[str, str], Machine] = {}
    unlisted = set()
    for name, cluster in _provider_clusters(workspace):
        provider = workspace.provider(name)
        if isinstance(provider, ListsMachines):
            with suppress(UsageError):  # a provider with records, of a state that can't have any
                for machine in provider.list_machines(cluster):
                    found[name, machine.id] = machine
        elif provider.capabilities.creates_machines:
            unlisted.add(name)
    for name in sorted(unlisted):
        workspace.notify(f"Provider {name} can't list its machines.")
    # Read the state last: an apply records the key of a machine before it creates it.
    state, now = workspace.ledger.state(), time.time()
    selected = {lineage or state.lineage for lineage in lineages}
    orphans = [
        OrphanedMachine(
            name,
            machine,
            machine.lineage == state.lineage,
            cost_since(machine.launched_at, machine.node.price_per_hour, now),
        )
        for (name, _), machine in found.items()
        if is_orphaned(state, machine) and (not selected or machine.lineage in selected)
    ]
    return sorted(orphans, key=lambda orphan: (orphan.provider, orphan.machine.launched_at or 0.0))


def _provider_clusters(workspace: Workspace) -> Iterator[tuple[str, ClusterSettings]]:
    """Yield providers and settings of recorded and declared clusters; providers with records also without a cluster."""
    recorded = of_kind(workspace.ledger.state().external, Kind.CLUSTER)
    for item in (*recorded, *declared_clusters(workspace)):
        yield item.provider, ClusterSettings(item.address.name, item.cluster_spec.settings)
    for name in discovery.plugin_names(discovery.PROVIDERS):
        if hasattr(workspace.provider(name), "set_project"):
            yield name, ClusterSettings("", {})


def end_machines(workspace: Workspace, orphans: Sequence[OrphanedMachine]) -> list[OrphanedMachine]:
    """Delete the machines; return them with the error of each that could not be deleted."""

    def end(orphan: OrphanedMachine) -> OrphanedMachine:
        try:
            workspace.provider(orphan.provider).delete(orphan.machine.node)
        except NodeError as error:
            return replace(orphan, error=error.summary)
        return replace(orphan, ended=True)

    return each(end, orphans, _AT_ONCE)


def quarantine(workspace: Workspace, name: str, reason: str) -> Node:
    """Quarantine a node (``CLUSTER/NODE``); live runs on it continue."""
    if not reason.strip():
        raise UsageError("--reason is empty", "Name the reason, e.g. --reason 'ECC errors'.")
    cluster, node = recorded_node(workspace.ledger.state(), name)
    record_quarantine(workspace.ledger, cluster.address, node.id, " ".join(reason.split()))
    return node


def release(workspace: Workspace, name: str) -> Node:
    """Release a quarantined node; UsageError if it isn't quarantined."""
    quarantine_lost_nodes(workspace.ledger)
    cluster, node = recorded_node(workspace.ledger.state(), name)
    entry = quarantined(cluster).get(node.id)
    if entry is None:
        raise UsageError(f"node {name} is not quarantined", "List nodes: trainctl nodes.")
    _record(workspace.ledger, cluster, node, replace(entry, released=time.time()))
    return node


def record_quarantine(ledger: Ledger, address: Address, node_id: str, reason: str) -> None:
    """Record that a node is quarantined; nothing if it is not in the state."""
    cluster = ledger.recorded(address)
    node = node_named(cluster, node_id) if cluster else None
    if cluster is not None and node is not None:
        actor = current_holder().actor
        _record(ledger, cluster, node, QuarantineEntry(reason, time.time(), actor, node.key))


def quarantine_lost_nodes(ledger: Ledger) -> Mapping[str, str]:
    """Quarantine nodes that the last runs on them lost; return their reasons by id."""
    lost = lost_nodes(ledger.state())
    for node, reason in lost.items():
        record_quarantine(ledger, Address(Kind.CLUSTER, node.partition("/")[0]), node, reason)
    return lost


def _record(ledger: Ledger, cluster: RecordedResource, node: Node, entry: QuarantineEntry) -> None:
    before = cluster.outputs.get(OUTPUT) or {}
    ledger.observe(cluster.address, {OUTPUT: {**before, node.name: entry.to_json()}})
    event = f"quarantined: {entry.reason}"
    if entry.released is not None:
        event = "released from quarantine"
    ledger.note(f"{node.id} {event}", cluster.address)
