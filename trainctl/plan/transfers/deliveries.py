"""What each rank of each new run needs on its node: bytes by tier, the way they take, how they appear, how long it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from trainctl.model.address import Address
from trainctl.model.delivery import isolated_hosts
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plan.placement import RankPlacement, rank_placements, starting_changes
from trainctl.plan.transfers.disk_space import available_space, space_problems
from trainctl.plan.transfers.routes import (
    RemoteNodes,
    choose_route,
    client_transfer_warnings,
    forecast,
)
from trainctl.plan.transfers.weights import content_key, expected_tiers
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
    """A row for each new run, rank and weights."""
    lines = {line.address: line for line in weights}
    found: list[DeliveryRow] = []
    for job in starting_changes(changes):
        places = list(rank_placements(inputs, job))
        known = [seat.facts for seat in places if seat.facts]
        near = sum(1 for facts in known if facts.mirror_on and facts.near)
        far = _remote_nodes(known, job.job_spec.compute.node_count - near)
        found += [line for seat in places for line in _rank_row(job, seat, lines, far)]
    sources = {
        one: content_key(seen.resolved) for one, seen in inputs.weights.items() if seen.resolved
    }
    return tuple(replace(line, source=sources.get(line.weights, "")) for line in found)


def _remote_nodes(known: Iterable[NodeFacts], count: int) -> RemoteNodes:
    """Of so many nodes that don't see the mirror's directory those that could be asked are known."""
    serving = {facts.id: facts.serving for facts in known if not facts.near}
    alone = isolated_hosts(serving) if count > 1 else {}
    return RemoteNodes(count - len(alone), any(one.tls for one in serving.values()), alone)


def delivery_problems(
    inputs: PlanInputs, changes: Iterable[Change], lines: Iterable[DeliveryRow]
) -> Iterator[Diagnostic]:
    """Mounts that can't be made, disks that are too small, and ranks that have no node."""
    facts = {node.id: node for nodes in inputs.nodes.values() for node in nodes}
    changes = starting_changes(changes)
    for job in changes:
        yield from _too_few_nodes(inputs, job)
        yield from _impossible_mounts(inputs, job)
    lines = tuple(lines)
    yield from space_problems(facts, changes, lines)
    here = [line for line in lines if not _mirror_on(facts, line)]
    yield from client_transfer_warnings(here)
    yield from _unserved(facts, lines)


def _mirror_on(facts: Mapping[str, NodeFacts], line: DeliveryRow) -> str:
    """The host that keeps the mirror; empty where this machine does."""
    seen = facts.get(line.node or "")
    return seen.mirror_on if seen else ""


def _unserved(facts: Mapping[str, NodeFacts], lines: Iterable[DeliveryRow]) -> Iterator[Diagnostic]:
    """Jobs on nodes that the mirror's host can't hand what they lack."""
    found = ((line, facts.get(line.node or "")) for line in lines if line.path != "none")
    jobs = {line.job: seen for line, seen in found if seen is not None and seen.unserved}
    for job, seen in sorted(jobs.items(), key=lambda item: item[0]):
        yield error(
            f"{seen.id} cannot download its weights from {seen.mirror_on}: {seen.unserved}",
            "Give the node an address that others can reach, in a private network or with a Python that has TLS (`python:`). Or change the mirror: {url: node://CLUSTER/DIRECTORY}, or on this machine: {url: file:///DIRECTORY}.",
            address=str(job),
            code="private-address-missing",
        )


def _rank_row(
    job: Change, seat: RankPlacement, lines: Mapping[Address, WeightsRow], far: RemoteNodes
) -> Iterator[DeliveryRow]:
    for wanted in job.job_spec.weights:
        address = wanted.address
        line = lines.get(address)
        tiers = _tiers(seat.facts, line, address)
        way = choose_route(tiers, seat.facts, far)
        sharing = far.count if way.path == "peers" else job.job_spec.compute.node_count
        seconds = forecast(tiers, way.path, seat.facts, sharing)
        yield DeliveryRow(
            job=job.address,
            rank=seat.rank,
            node=seat.node,
            weights=address,
            tiers=tiers,
            path=way.path,
            why=way.why,
            mount=_mount(job, seat),
            mount_location=wanted.mount_location,
            forecast_seconds=seconds.whole,
            last_hop_seconds=seconds.last_hop,
            room=available_space(seat.facts) if seat.facts else None,
        )


def _mount(job: Change, seat: RankPlacement) -> str:
    if job.job_spec.in_container:
        return "container"
    return seat.facts.mount if seat.facts else ""


def _tiers(facts: NodeFacts | None, line: WeightsRow | None, address: Address) -> TierFacts | None:
    if facts and address in facts.tiers:
        return facts.tiers[address]
    return expected_tiers(line) if line else None


def _too_few_nodes(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    cluster, wanted = job.job_spec.cluster_address, job.job_spec.compute.node_count
    names = inputs.node_names.get(cluster)
    if names is not None and wanted > len(names):
        have = f"{len(names)} node{'s' if len(names) != 1 else ''}"
        yield error(
            f"{job.address} needs {wanted} nodes, but {cluster} has {have}",
            f"Lower compute.node_count, or add nodes to {cluster}.",
            address=str(job.address),
            code="too-few-nodes",
        )
    elif names and len(inputs.rank_placements.get(job.address, ())) < wanted:
        said = {one.id for one in inputs.nodes.get(cluster, ())}
        away = [node for name in names if (node := f"{cluster.name}/{name}") not in said]
        if said and away:
            yield warning(
                f"{job.address} will wait: it needs {wanted} nodes, and {', '.join(away)} can't be reached",
                "Apply again when the nodes are reachable.",
                address=str(job.address),
                code="waiting-for-node",
            )


def _impossible_mounts(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    absolute = [] if job.job_spec.in_container else sorted(_absolute_mounts(job.job_spec))
    unable = [s for s in rank_placements(inputs, job) if s.facts and s.facts.mount == "link"]
    if not absolute or not unable:
        return
    facts = unable[0].facts
    why = f" ({facts.detail})" if facts and facts.detail else ""
    yield error(
        f"{', '.join(absolute)} cannot be created on {unable[0].node}{why}",
        f"{unable[0].node} doesn't support private mounts. Use a relative mount_location, such as {_relative(absolute[0])}, or enable user namespaces on the node.",
        address=str(job.address),
        code="impossible-mount",
    )


def _absolute_mounts(job: JobSpec) -> set[str]:
    return {place for place in job.mount_locations if place.startswith("/")}


def _relative(place: str) -> str:
    return f"weights/{place.rstrip('/').rpartition('/')[2]}"
