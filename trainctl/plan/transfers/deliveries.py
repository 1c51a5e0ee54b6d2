"""Planned deliveries of weights to new runs, and their problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from trainctl.model.address import Address
from trainctl.model.delivery import isolated_hosts
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.placement import (
    RankPlacement,
    rank_placements,
    starting_changes,
)
from trainctl.plan.transfers.disk_space import available_space, space_problems
from trainctl.plan.transfers.routes import (
    RemoteNodes,
    choose_route,
    client_transfer_warnings,
    forecast,
)
from trainctl.plan.transfers.weights import content_key, expected_tiers
from trainctl.plan.validation.quarantine import quarantine_error
from trainctl.plan.values import (
    Change,
    DeliveryRow,
    NodeFacts,
    PlanInputs,
    TierFacts,
    WeightsRow,
)


def delivery_rows(
    inputs: PlanInputs, changes: Iterable[Change], weights: Iterable[WeightsRow]
) -> tuple[DeliveryRow, ...]:
    """Return a row for each new run, rank and weights."""
    weights_by_address = {row.address: row for row in weights}
    rows: list[DeliveryRow] = []
    for job in starting_changes(changes):
        placements = list(rank_placements(inputs, job))
        known = [placement.facts for placement in placements if placement.facts]
        local = sum(1 for facts in known if facts.mirror.host and facts.mirror.sees)
        remote = _remote_nodes(known, job.job_spec.compute.node_count - local)
        for placement in placements:
            rows += _rank_rows(job, placement, weights_by_address, remote)
    sources = {
        address: content_key(facts.resolved)
        for address, facts in inputs.weights.items()
        if facts.resolved
    }
    return tuple(replace(row, source=sources.get(row.weights, "")) for row in rows)


def _remote_nodes(known: Iterable[NodeFacts], count: int) -> RemoteNodes:
    """Summarize the ``count`` nodes without access to the mirror."""
    serving = {facts.id: facts.serving for facts in known if not facts.mirror.sees}
    isolated = isolated_hosts(serving) if count > 1 else {}
    tls = any(capability.tls for capability in serving.values())
    return RemoteNodes(count - len(isolated), tls, isolated)


def delivery_problems(
    inputs: PlanInputs, changes: Iterable[Change], rows: Iterable[DeliveryRow]
) -> Iterator[Diagnostic]:
    """Report impossible mounts, missing disk space and missing nodes."""
    facts = {node.id: node for nodes in inputs.nodes.values() for node in nodes}
    changes = starting_changes(changes)
    for job in changes:
        yield from _too_few_nodes(inputs, job)
        yield from _impossible_mounts(inputs, job)
    rows = tuple(rows)
    yield from space_problems(facts, changes, rows)
    on_host = {node.id for node in facts.values() if node.mirror.host}
    from_client = [row for row in rows if row.node not in on_host]
    yield from client_transfer_warnings(from_client)
    yield from _unserved_nodes(facts, rows)


def _unserved_nodes(
    facts: Mapping[str, NodeFacts], rows: Iterable[DeliveryRow]
) -> Iterator[Diagnostic]:
    """Report jobs on nodes that the mirror's host can't serve."""
    nodes = ((row, facts.get(row.node or "")) for row in rows if row.path != "none")
    jobs = {
        row.job: node for row, node in nodes if node is not None and node.mirror.unserved_reason
    }
    for job, node in sorted(jobs.items(), key=lambda item: item[0]):
        yield error(
            f"{node.id} cannot download its weights from {node.mirror.host}: {node.mirror.unserved_reason}",
            "Give the node an address that others can reach, in a private network or with a Python that has TLS (`python:`). Or change the mirror: {url: node://CLUSTER/DIRECTORY}, or on this machine: {url: file:///DIRECTORY}.",
            address=str(job),
            code="private-address-missing",
        )


def _rank_rows(
    job: Change, placement: RankPlacement, rows: Mapping[Address, WeightsRow], remote: RemoteNodes
) -> Iterator[DeliveryRow]:
    for weights in job.job_spec.weights:
        address = weights.address
        row = rows.get(address)
        tiers = _tiers(placement.facts, row, address)
        route = choose_route(tiers, placement.facts, remote)
        sharing = remote.count if route.path == "peers" else job.job_spec.compute.node_count
        seconds = forecast(tiers, route.path, placement.facts, sharing)
        yield DeliveryRow(
            job=job.address,
            rank=placement.rank,
            node=placement.node,
            weights=address,
            tiers=tiers,
            path=route.path,
            why=route.why,
            mount=_mount(job, placement),
            mount_location=weights.mount_location,
            forecast_seconds=seconds.total,
            last_hop_seconds=seconds.last_hop,
            weights_space=available_space(placement.facts) if placement.facts else None,
        )


def _mount(job: Change, placement: RankPlacement) -> str:
    if job.job_spec.in_container:
        return "container"
    return placement.facts.reported["mount"] if placement.facts else ""


def _tiers(facts: NodeFacts | None, row: WeightsRow | None, address: Address) -> TierFacts | None:
    if facts and address in facts.tiers:
        return facts.tiers[address]
    return expected_tiers(row) if row else None


def _too_few_nodes(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    cluster, count = job.job_spec.cluster_address, job.job_spec.compute.node_count
    names = None if cluster in inputs.scheduled else inputs.node_names.get(cluster)
    if names is not None and count > len(names):
        have = f"{len(names)} node{'s' if len(names) != 1 else ''}"
        yield error(
            f"{job.address} needs {count} nodes, but {cluster} has {have}",
            f"Lower compute.node_count, or add nodes to {cluster}.",
            address=str(job.address),
            code="too-few-nodes",
        )
    elif (barred := _barred_nodes(inputs, cluster)) and count > len(names or ()) - len(barred):
        problem = quarantine_error(job.address, count, *next(iter(barred.items())))
        yield error(problem.summary, problem.detail, address=str(job.address), code=problem.code)
    elif names and len(inputs.rank_placements.get(job.address, ())) < count:
        reachable = {facts.id for facts in inputs.nodes.get(cluster, ())}
        unreachable = [
            node for name in names if (node := f"{cluster.name}/{name}") not in reachable
        ]
        if reachable and unreachable:
            yield warning(
                f"{job.address} will wait: it needs {count} nodes, and {', '.join(unreachable)} can't be reached",
                "Apply again when the nodes are reachable.",
                address=str(job.address),
                code="waiting-for-node",
            )


def _barred_nodes(inputs: PlanInputs, cluster: Address) -> dict[str, str]:
    """Return the quarantined nodes of a cluster with their reasons."""
    names = {f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())}
    return {node: reason for node, reason in inputs.quarantined.items() if node in names}


def _impossible_mounts(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    locations = [] if job.job_spec.in_container else job.job_spec.mount_locations
    absolute = sorted({location for location in locations if location.startswith("/")})
    facts = (placement.facts for placement in rank_placements(inputs, job))
    node = next((node for node in facts if node and node.reported["mount"] == "link"), None)
    if not absolute or node is None:
        return
    reasons = "; ".join(f"{item['path']}: {item['why']}" for item in node.reported["blocked"])
    why = f" ({reasons})" if reasons else ""
    relative = f"weights/{absolute[0].rstrip('/').rpartition('/')[2]}"
    yield error(
        f"{', '.join(absolute)} cannot be created on {node.id}{why}",
        f"{node.id} doesn't support private mounts. Use a relative mount_location, such as {relative}, or enable user namespaces on the node.",
        address=str(job.address),
        code="impossible-mount",
    )
