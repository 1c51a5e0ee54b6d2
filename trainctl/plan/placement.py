"""Which runs start, and which nodes of its cluster each gets: the same values give the same nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.specs.job_spec import ComputeSpec
from trainctl.plan.transfers.weights import content_key
from trainctl.plan.values import Change, GpuFacts, NodeFacts, Plan, PlanInputs

_NOMINAL = 0.9


class SpaceAvailability(IntEnum):
    """When a node has room for a run's weights: now, once other runs have ended, or never."""

    NOW = 0
    LATER = 1
    NEVER = 2

    @classmethod
    def of(cls, missing: int, total: int, room: int | None, most: int | None) -> SpaceAvailability:
        """By the bytes of weights that no live run has there, all their bytes, and what weights may take now and ``most`` (None: not known)."""
        if most is not None and total > most:
            return cls.NEVER
        return cls.LATER if room is not None and missing > room else cls.NOW


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What one node has for it: GPUs that jobs may use, live runs, and bytes of the wanted weights that are there already;
    and when there is room for them. ``planned_runs``: the plan has the run there.

    ``gpus`` is None where nobody asked the nodes: then none is refused. ``cpus`` and ``memory`` are 0 where they are not known.
    """

    node: str
    gpus: tuple[GpuFacts, ...] | None = ()
    runs: int = 0
    bytes_there: int = 0
    cpus: int = 0
    memory: int = 0
    room: SpaceAvailability = SpaceAvailability.NOW
    planned: bool = False

    def usable(self, kind: str) -> int:
        """How many GPUs of a kind jobs may ever use there."""
        return sum(1 for one in self.gpus or () if one.matches(kind))

    def free(self, kind: str) -> int:
        """How many of these nobody uses now."""
        return sum(1 for one in self.gpus or () if one.matches(kind) and one.free)

    def can_hold(self, wanted: ComputeSpec) -> bool:
        """Whether the GPUs that are wanted exist there, and the machine is large enough."""
        seated = self.gpus is None or self.usable(wanted.gpu_kind) >= (wanted.gpus or 0)
        return seated and is_large_enough(wanted, self.cpus, self.memory)

    def can_start_now(self, wanted: ComputeSpec) -> bool:
        """Whether they are free now."""
        count = self.usable(wanted.gpu_kind) if wanted.gpus is None else wanted.gpus
        return self.free(wanted.gpu_kind) >= count


def is_large_enough(wanted: ComputeSpec, cpus: int, memory: int) -> bool:
    """Whether a machine has the processors and memory; 0: not known. A machine sold with 64Gi has a little less that can be used."""
    enough = not memory or memory >= (wanted.memory_bytes or 0) * _NOMINAL
    return enough and (not cpus or cpus >= (wanted.cpu_count or 0))


def assign_nodes(wanted: ComputeSpec, offers: Sequence[NodeOffer]) -> tuple[str, ...]:
    """The nodes of a run by rank: fewer than it wants if there are not as many that could ever hold it.

    Those that never have room for the weights come last. Of the others, in their declared order, those whose GPUs are free come
    first, then those with room now, then those of the plan, then those that have most of the weights' bytes, then those with the
    fewest live runs. Ranks are then numbered in the declared order.
    """
    numbered = [(at, one) for at, one in enumerate(offers) if one.can_hold(wanted)]

    def preference(numbered: tuple[int, NodeOffer]) -> tuple[int, ...]:
        at, one = numbered
        waits = (one.room is SpaceAvailability.NEVER, not one.can_start_now(wanted), one.room)
        return (*waits, not one.planned, -one.bytes_there, one.runs, at)

    chosen = sorted(numbered, key=preference)[: wanted.node_count]
    return tuple(one.node for _, one in sorted(chosen, key=lambda numbered: numbered[0]))


def reserve(offer: NodeOffer, wanted: ComputeSpec) -> NodeOffer:
    """The offer once such a run has begun there, as far as there is room for it."""
    left = offer.usable(wanted.gpu_kind) if wanted.gpus is None else wanted.gpus
    gpus = []
    for one in offer.gpus or ():
        taken = left > 0 and one.free and one.matches(wanted.gpu_kind)
        left -= taken
        gpus.append(replace(one, free=False) if taken else one)
    kept = None if offer.gpus is None else tuple(gpus)
    return replace(offer, gpus=kept, runs=offer.runs + 1)


NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Where one rank will run: the node's id, and what the node said of itself if it could be asked."""

    rank: int
    node: str | None
    facts: NodeFacts | None


def starting_changes(changes: Iterable[Change]) -> list[Change]:
    """The changes that start a run, in the order in which they will be: that of the plan."""
    return [c for c in changes if c.address.kind is Kind.JOB and c.action in NEW_RUN]


def rank_placements(inputs: PlanInputs, job: Change) -> Iterator[RankPlacement]:
    """The nodes of a job by rank, as ``likely_nodes`` found them; None where there are not enough."""
    by_id = {facts.id: facts for facts in inputs.nodes.get(job.job_spec.cluster_address, ())}
    chosen = inputs.rank_placements.get(job.address, ())
    for rank in range(job.job_spec.compute.node_count):
        node = chosen[rank] if rank < len(chosen) else None
        yield RankPlacement(rank, node, by_id.get(node) if node else None)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A new run of a plan: what it asks for, and its nodes as far as the plan tells them."""

    wanted: ComputeSpec
    nodes: frozenset[str]


def planned_runs(plan: Plan) -> dict[Address, PlannedRun]:
    """The new runs of a plan, also of one that was saved: nodes are told of those that get weights."""
    nodes: dict[Address, set[str]] = {}
    for line in plan.deliveries:
        if line.node is not None:
            nodes.setdefault(line.job, set()).add(line.node)
    return {
        job.address: PlannedRun(job.job_spec.compute, frozenset(nodes.get(job.address, ())))
        for job in starting_changes(plan.changes)
    }


def note_claimed_gpus(inputs: PlanInputs, change: Change) -> Change:
    """The change, with a word on what a new run gets whose job names no accelerator: all GPUs of its nodes."""
    if not starting_changes([change]) or change.job_spec.compute.accelerator:
        return change
    most = max(
        (seat.facts.usable_gpus for seat in rank_placements(inputs, change) if seat.facts),
        default=0,
    )
    said = f"claims all GPUs of its node: {most}" if most else ""
    return replace(change, note="; ".join(line for line in (change.note, said) if line))


def likely_nodes(inputs: PlanInputs, changes: Iterable[Change]) -> dict[Address, tuple[str, ...]]:
    """The nodes that each new run would get if all were placed now, one after another by address."""
    offers: dict[Address, dict[str, NodeOffer]] = {}
    found: dict[Address, tuple[str, ...]] = {}
    for job in starting_changes(changes):
        cluster, wanted = job.job_spec.cluster_address, job.job_spec.compute
        if cluster not in offers:
            offers[cluster] = {offer.node: offer for offer in _offers(inputs, cluster)}
        there = offers[cluster]
        weights = [item.address for item in job.job_spec.weights]
        seen = [_with_weights(inputs, cluster, one, weights) for one in there.values()]
        chosen = assign_nodes(wanted, seen)
        there.update({node: reserve(there[node], wanted) for node in chosen})
        found[job.address] = chosen
    return found


def _offers(inputs: PlanInputs, cluster: Address) -> Iterator[NodeOffer]:
    """What is known of each node that could be asked, in the order in which the provider plans them; where none was asked, nothing but that."""
    facts = {one.id: one for one in inputs.nodes.get(cluster, ())}
    names = [f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())]
    for node in [name for name in names if name in facts] or names or facts:
        seen = facts.get(node)
        if seen is None or seen.free_resources is None:
            yield NodeOffer(node, gpus=None)
        else:
            free = seen.free_resources
            yield NodeOffer(node, free.gpus, free.runs, cpus=seen.cpus, memory=seen.memory)


def _with_weights(
    inputs: PlanInputs, cluster: Address, offer: NodeOffer, weights: Sequence[Address]
) -> NodeOffer:
    facts = next((one for one in inputs.nodes.get(cluster, ()) if one.id == offer.node), None)
    if facts is None:
        return offer
    weights = _without_duplicates(inputs, weights)
    there = sum(facts.tiers[item].node for item in weights if item in facts.tiers)
    claims = sum(facts.claims.get(item, 0) for item in weights)
    total = sum(facts.tiers[item].total for item in weights if item in facts.tiers)
    room = SpaceAvailability.of(claims, total, facts.room, facts.most)
    return replace(offer, bytes_there=there, room=room)


def _without_duplicates(inputs: PlanInputs, weights: Sequence[Address]) -> list[Address]:
    """Of those that name one source at one version the first: a node has it once."""
    found: dict[str, Address] = {}
    for item in weights:
        seen = inputs.weights.get(item)
        found.setdefault(content_key(seen.resolved) if seen and seen.resolved else str(item), item)
    return list(found.values())
