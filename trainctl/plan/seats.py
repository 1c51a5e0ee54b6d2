"""Which runs start, and on which node each of their ranks will be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.job_spec import Compute
from trainctl.plan.placement import Offer, Room, place, with_run
from trainctl.plan.values import Change, Inputs, NodeFacts, Plan
from trainctl.plan.weights import content_of

NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank will run: the node's id, and what the node said of itself if it could be asked."""

    rank: int
    node: str | None
    facts: NodeFacts | None


def starting(changes: Iterable[Change]) -> list[Change]:
    """The changes that start a run, in the order in which they will be: that of the plan."""
    return [c for c in changes if c.address.kind is Kind.JOB and c.action in NEW_RUN]


def seats(inputs: Inputs, job: Change) -> Iterator[Seat]:
    """The nodes of a job by rank, as ``likely`` found them; None where there are not enough."""
    by_id = {facts.id: facts for facts in inputs.nodes.get(job.job_spec.cluster_address, ())}
    chosen = inputs.seats.get(job.address, ())
    for rank in range(job.job_spec.compute.node_count):
        node = chosen[rank] if rank < len(chosen) else None
        yield Seat(rank, node, by_id.get(node) if node else None)


@dataclass(frozen=True, slots=True)
class Planned:
    """A new run of a plan: what it asks for, and its nodes as far as the plan tells them."""

    wanted: Compute
    nodes: frozenset[str]


def planned(plan: Plan) -> dict[Address, Planned]:
    """The new runs of a plan, also of one that was saved: nodes are told of those that get weights."""
    nodes: dict[Address, set[str]] = {}
    for line in plan.deliveries:
        if line.node is not None:
            nodes.setdefault(line.job, set()).add(line.node)
    return {
        job.address: Planned(job.job_spec.compute, frozenset(nodes.get(job.address, ())))
        for job in starting(plan.changes)
    }


def claiming(inputs: Inputs, change: Change) -> Change:
    """The change, with a word on what a new run gets whose job names no accelerator: all GPUs of its nodes."""
    if not starting([change]) or change.job_spec.compute.accelerator:
        return change
    most = max((seat.facts.usable_gpus for seat in seats(inputs, change) if seat.facts), default=0)
    said = f"claims all GPUs of its node: {most}" if most else ""
    return replace(change, note="; ".join(line for line in (change.note, said) if line))


def likely(inputs: Inputs, changes: Iterable[Change]) -> dict[Address, tuple[str, ...]]:
    """The nodes that each new run would get if all were placed now, one after another by address."""
    offers: dict[Address, dict[str, Offer]] = {}
    found: dict[Address, tuple[str, ...]] = {}
    for job in starting(changes):
        cluster, wanted = job.job_spec.cluster_address, job.job_spec.compute
        if cluster not in offers:
            offers[cluster] = {one.node: one for one in _offers(inputs, cluster)}
        there = offers[cluster]
        weights = [one.address for one in job.job_spec.weights]
        seen = [_with_weights(inputs, cluster, one, weights) for one in there.values()]
        chosen = place(wanted, seen)
        there.update({node: with_run(there[node], wanted) for node in chosen})
        found[job.address] = chosen
    return found


def _offers(inputs: Inputs, cluster: Address) -> Iterator[Offer]:
    """What is known of each node that could be asked, in the order in which the provider plans them; where none was asked, nothing but that."""
    facts = {one.id: one for one in inputs.nodes.get(cluster, ())}
    names = [f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())]
    for node in [name for name in names if name in facts] or names or facts:
        seen = facts.get(node)
        if seen is None or seen.vacancy is None:
            yield Offer(node, gpus=None)
        else:
            free = seen.vacancy
            yield Offer(node, free.gpus, free.runs, cpus=seen.cpus, memory=seen.memory)


def _with_weights(
    inputs: Inputs, cluster: Address, offer: Offer, weights: Sequence[Address]
) -> Offer:
    facts = next((one for one in inputs.nodes.get(cluster, ()) if one.id == offer.node), None)
    if facts is None:
        return offer
    weights = _once(inputs, weights)
    there = sum(facts.tiers[one].node for one in weights if one in facts.tiers)
    claims = sum(facts.claims.get(one, 0) for one in weights)
    total = sum(facts.tiers[one].total for one in weights if one in facts.tiers)
    room = Room.of(claims, total, facts.room, facts.most)
    return replace(offer, bytes_there=there, room=room)


def _once(inputs: Inputs, weights: Sequence[Address]) -> list[Address]:
    """Of those that name one source at one version the first: a node has it once."""
    found: dict[str, Address] = {}
    for one in weights:
        seen = inputs.weights.get(one)
        found.setdefault(content_of(seen.resolved) if seen and seen.resolved else str(one), one)
    return list(found.values())
