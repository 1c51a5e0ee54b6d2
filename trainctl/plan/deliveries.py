"""What each rank of each new run needs on its node: bytes by tier, the way they take, how they appear, how long it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from trainctl.model.address import Address
from trainctl.model.delivery import cut_off
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.job_spec import JobSpec
from trainctl.plan.placement import Seat, seats, starting
from trainctl.plan.room import room_of, room_problems
from trainctl.plan.values import (
    Change,
    DeliveryLine,
    Inputs,
    NodeFacts,
    TierFacts,
    WeightsLine,
)
from trainctl.plan.ways import Far, crossings, forecast, way_of
from trainctl.plan.weights import content_of, tiers_of


def delivery_lines(
    inputs: Inputs, changes: Iterable[Change], weights: Iterable[WeightsLine]
) -> tuple[DeliveryLine, ...]:
    """A row for each new run, rank and weights."""
    lines = {line.address: line for line in weights}
    found: list[DeliveryLine] = []
    for job in starting(changes):
        places = list(seats(inputs, job))
        known = [seat.facts for seat in places if seat.facts]
        near = sum(1 for facts in known if facts.mirror_on and facts.near)
        far = _far(known, job.job_spec.compute.node_count - near)
        found += [line for seat in places for line in _of_rank(job, seat, lines, far)]
    sources = {
        one: content_of(seen.resolved) for one, seen in inputs.weights.items() if seen.resolved
    }
    return tuple(replace(line, source=sources.get(line.weights, "")) for line in found)


def _far(known: Iterable[NodeFacts], count: int) -> Far:
    """Of so many nodes that don't see the mirror's directory those that could be asked are known."""
    serving = {facts.id: facts.serving for facts in known if not facts.near}
    alone = cut_off(serving) if count > 1 else {}
    return Far(count - len(alone), any(one.tls for one in serving.values()), alone)


def delivery_problems(
    inputs: Inputs, changes: Iterable[Change], lines: Iterable[DeliveryLine]
) -> Iterator[Diagnostic]:
    """Mounts that can't be made, disks that are too small, and ranks that have no node."""
    facts = {one.id: one for nodes in inputs.nodes.values() for one in nodes}
    changes = starting(changes)
    for job in changes:
        yield from _too_few_nodes(inputs, job)
        yield from _impossible_mounts(inputs, job)
    lines = tuple(lines)
    yield from room_problems(facts, changes, lines)
    here = [line for line in lines if not _mirror_on(facts, line)]
    yield from crossings(here)
    yield from _unserved(facts, lines)


def _mirror_on(facts: Mapping[str, NodeFacts], line: DeliveryLine) -> str:
    """The host that keeps the mirror; empty where this machine does."""
    seen = facts.get(line.node or "")
    return seen.mirror_on if seen else ""


def _unserved(
    facts: Mapping[str, NodeFacts], lines: Iterable[DeliveryLine]
) -> Iterator[Diagnostic]:
    """Jobs on nodes that the mirror's host can't hand what they lack."""
    found = ((line, facts.get(line.node or "")) for line in lines if line.path != "none")
    jobs = {line.job: seen for line, seen in found if seen is not None and seen.unserved}
    for job, seen in sorted(jobs.items(), key=lambda item: item[0]):
        yield error(
            f"{seen.id} can't get its weights from {seen.mirror_on}: {seen.unserved}",
            "Give it an address that the others reach, in a private network or with a Python that has TLS (`python:`), name another mirror: "
            "{url: node://CLUSTER/DIRECTORY}, or keep it here: {url: file:///DIRECTORY}.",
            address=str(job),
            code="no-private-address",
        )


def _of_rank(
    job: Change, seat: Seat, lines: Mapping[Address, WeightsLine], far: Far
) -> Iterator[DeliveryLine]:
    for wanted in job.job_spec.weights:
        address = wanted.address
        line = lines.get(address)
        tiers = _tiers(seat.facts, line, address)
        way = way_of(tiers, seat.facts, far)
        sharing = far.count if way.path == "peers" else job.job_spec.compute.node_count
        seconds = forecast(tiers, way.path, seat.facts, sharing)
        yield DeliveryLine(
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
            room=room_of(seat.facts) if seat.facts else None,
        )


def _mount(job: Change, seat: Seat) -> str:
    if job.job_spec.in_container:
        return "container"
    return seat.facts.mount if seat.facts else ""


def _tiers(facts: NodeFacts | None, line: WeightsLine | None, address: Address) -> TierFacts | None:
    if facts and address in facts.tiers:
        return facts.tiers[address]
    return tiers_of(line) if line else None


def _too_few_nodes(inputs: Inputs, job: Change) -> Iterator[Diagnostic]:
    cluster, wanted = job.job_spec.cluster_address, job.job_spec.compute.node_count
    names = inputs.node_names.get(cluster)
    if names is not None and wanted > len(names):
        have = f"{len(names)} node{'s' if len(names) != 1 else ''}"
        yield error(
            f"{job.address} asks for {wanted} nodes and {cluster} has {have}",
            f"Lower compute.node_count, or give {cluster} more nodes.",
            address=str(job.address),
            code="too-few-nodes",
        )
    elif names and len(inputs.seats.get(job.address, ())) < wanted:
        said = {one.id for one in inputs.nodes.get(cluster, ())}
        away = [node for name in names if (node := f"{cluster.name}/{name}") not in said]
        if said and away:
            yield warning(
                f"{job.address} will wait: {wanted} nodes are wanted, and {', '.join(away)} can't be reached",
                "It is left to an apply that can reach them.",
                address=str(job.address),
                code="waits-for-node",
            )


def _impossible_mounts(inputs: Inputs, job: Change) -> Iterator[Diagnostic]:
    absolute = [] if job.job_spec.in_container else sorted(_absolute_mounts(job.job_spec))
    unable = [s for s in seats(inputs, job) if s.facts and s.facts.mount == "link"]
    if not absolute or not unable:
        return
    facts = unable[0].facts
    why = f" ({facts.detail})" if facts and facts.detail else ""
    yield error(
        f"{', '.join(absolute)} can't be made on {unable[0].node}{why}",
        f"{unable[0].node} has no private mounts. Write a relative mount_location, "
        f"such as {_relative(absolute[0])}, or enable user namespaces on that machine.",
        address=str(job.address),
        code="impossible-mount",
    )


def _absolute_mounts(job: JobSpec) -> set[str]:
    return {place for place in job.mount_locations if place.startswith("/")}


def _relative(place: str) -> str:
    return f"weights/{place.rstrip('/').rpartition('/')[2]}"
