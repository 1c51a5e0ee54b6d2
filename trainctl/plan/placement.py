"""Placement of new runs on nodes, deterministic, and what their machines cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.reports import RunForecast, UnattendedCost
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import Compute
from trainctl.plan.changes import REMOVES
from trainctl.plan.values import Change, NodeFacts, Plan, PlanInputs, gpus_of_kind
from trainctl.plan.weights import content_key
from trainctl.plugin_api.provider import Node

if TYPE_CHECKING:
    from trainctl.base.protocol.host import FreeGpu
    from trainctl.base.protocol.weights import CacheQueryResponse


_NOMINAL = 0.9


class SpaceAvailability(IntEnum):
    """Whether a node has disk space for the weights of a run; LATER: after other runs."""

    NOW = 0
    LATER = 1
    NEVER = 2

    @classmethod
    def of(cls, missing: int, total: int, cached: CacheQueryResponse) -> SpaceAvailability:
        """Compare sizes of weights with the space that the node's cache has now and at most.

        ``missing`` are bytes of the weights that no live run uses on the node, ``total`` all of them.
        """
        space, most = cached.get("room"), cached.get("most")
        if most is not None and total > most:
            return cls.NEVER
        return cls.LATER if space is not None and missing > space else cls.NOW


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Resources of one node for a new run.

    ``gpus`` are those that jobs may use, None if unknown; ``runs`` counts live runs; ``bytes_there`` are cached bytes of
    the run's weights; ``cpus`` and ``memory`` are 0 if unknown. ``planned``: the plan placed the run there.
    """

    node: str
    gpus: Sequence[FreeGpu] | None = ()
    runs: int = 0
    bytes_there: int = 0
    cpus: int = 0
    memory: int = 0
    space: SpaceAvailability = SpaceAvailability.NOW
    planned: bool = False

    def usable(self, compute: Compute) -> list[FreeGpu]:
        """Return the GPUs of the required kind that jobs may use."""
        return gpus_of_kind(self.gpus or (), compute.gpu_kind)

    def claimed(self, compute: Compute) -> int:
        """Count the GPUs that a run would claim; by default all."""
        return len(self.usable(compute)) if compute.gpus is None else compute.gpus


def is_large_enough(compute: Compute, cpus: int, memory: int) -> bool:
    """Whether a machine has enough processors and memory (0: unknown).

    Usable memory may be 10 % below its nominal size.
    """
    enough_memory = not memory or memory >= (compute.memory_bytes or 0) * _NOMINAL
    return enough_memory and (not cpus or cpus >= (compute.cpu_count or 0))


def assign_nodes(compute: Compute, offers: Sequence[NodeOffer]) -> tuple[str, ...]:
    """Choose the nodes of a run by rank; fewer than required if too few are suitable.

    Preference: not forever out of disk space, free GPUs, disk space now, planned nodes, most cached bytes, fewest
    live runs, declared order. Ranks are numbered in the declared order.
    """
    candidates = [
        (index, offer)
        for index, offer in enumerate(offers)
        if offer.gpus is None or len(offer.usable(compute)) >= (compute.gpus or 0)
        if is_large_enough(compute, offer.cpus, offer.memory)
    ]

    def preference(candidate: tuple[int, NodeOffer]) -> tuple[int, ...]:
        index, offer = candidate
        return (
            offer.space is SpaceAvailability.NEVER,
            sum(gpu["free"] for gpu in offer.usable(compute)) < offer.claimed(compute),
            offer.space,
            not offer.planned,
            -offer.bytes_there,
            offer.runs,
            index,
        )

    chosen = sorted(candidates, key=preference)[: compute.node_count]
    return tuple(offer.node for _, offer in sorted(chosen, key=lambda candidate: candidate[0]))


def reserve(offer: NodeOffer, compute: Compute) -> NodeOffer:
    """Return the offer after the start of such a run."""
    missing, usable = offer.claimed(compute), offer.usable(compute)
    gpus: list[FreeGpu] = []
    for gpu in offer.gpus or ():
        claimed = missing > 0 and gpu["free"] and gpu in usable
        missing -= claimed
        gpus.append({**gpu, "free": gpu["free"] and not claimed})
    return replace(offer, gpus=None if offer.gpus is None else gpus, runs=offer.runs + 1)


NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


class RankPlacement(NamedTuple):
    """Planned node of a rank, with its facts if it could be queried."""

    rank: int
    node: str | None
    facts: NodeFacts | None


def starting_changes(changes: Iterable[Change]) -> list[Change]:
    """Return the changes that start a run, in their order."""
    return [
        change for change in changes if change.address.kind is Kind.JOB and change.action in NEW_RUN
    ]


def rank_placements(inputs: PlanInputs, job: Change) -> Iterator[RankPlacement]:
    """Yield the placement of each rank from ``likely_nodes``; the node may be None.

    For a batch system only that of the shared directory, from which all ranks read.
    """
    by_id = {facts.id: facts for facts in inputs.nodes.get(job.job_spec.cluster_address, ())}
    chosen = inputs.rank_placements.get(job.address, ())
    count = (
        1 if job.job_spec.cluster_address in inputs.scheduled else job.job_spec.compute.node_count
    )
    for rank in range(count):
        node = chosen[rank] if rank < len(chosen) else None
        yield RankPlacement(rank, node, by_id.get(node) if node else None)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A new run of a plan with its planned nodes, as far as known."""

    compute: Compute
    nodes: frozenset[str]
    image_digest: str | None = None


def planned_runs(plan: Plan) -> dict[Address, PlannedRun]:
    """Return the new runs of a plan; nodes are known for runs with weights."""
    nodes: dict[Address, set[str]] = {}
    for row in plan.deliveries:
        if row.node is not None:
            nodes.setdefault(row.job, set()).add(row.node)
    return {
        job.address: PlannedRun(
            job.job_spec.compute,
            frozenset(nodes.get(job.address, ())),
            job.covers.get("image_digest"),
        )
        for job in starting_changes(plan.changes)
    }


def with_note(inputs: PlanInputs, change: Change) -> Change:
    """Note what a new run evaluates, loads and claims."""
    if not starting_changes([change]):
        return change
    note = "; ".join(filter(None, (change.note, *_start_notes(inputs, change))))
    return replace(change, note=note)


def _start_notes(inputs: PlanInputs, change: Change) -> Iterator[str]:
    if followed := change.job_spec.followed_job:
        runs = map(RunRecord.from_json, reversed(change.outputs.get("runs") or ()))
        counts = ((run.number, len(run.reported.get("evaluations") or ())) for run in runs)
        about = (f", about {count} as in run {number}" for number, count in counts if count)
        yield f"runs once for each checkpoint of {followed}{next(about, '')}"
    for name in (change.after or {}).get("checkpoint_pins") or ():
        if name in inputs.best:
            yield f"loads {inputs.best[name][1]}"
    if not change.job_spec.compute.accelerator:  # it claims all
        facts = (placement.facts for placement in rank_placements(inputs, change))
        if count := max((node.usable_gpus() for node in facts if node), default=0):
            yield f"claims all GPUs of its node: {count}"


def likely_nodes(inputs: PlanInputs, changes: Iterable[Change]) -> dict[Address, tuple[str, ...]]:
    """Choose nodes for all new runs as if all were placed now, in order."""
    offers_by_cluster: dict[Address, dict[str, NodeOffer]] = {}
    nodes: dict[Address, tuple[str, ...]] = {}
    for job in starting_changes(changes):
        cluster, compute = job.job_spec.cluster_address, job.job_spec.compute
        if cluster not in offers_by_cluster:
            offers_by_cluster[cluster] = {offer.node: offer for offer in _offers(inputs, cluster)}
        offers = offers_by_cluster[cluster]
        unique: dict[str, Address] = {}
        for item in job.job_spec.weights:  # a node stores weights with equal content once
            known = inputs.weights.get(item.address)
            key = content_key(known.resolved) if known and known.resolved else str(item.address)
            unique.setdefault(key, item.address)
        with_weights = dict(offers)
        for facts in inputs.nodes.get(cluster, ()):
            if facts.id in offers:
                tiers = [facts.tiers[each] for each in unique.values() if each in facts.tiers]
                claims = sum(facts.claims.get(each, 0) for each in unique.values())
                total, there = sum(tier.total for tier in tiers), sum(tier.node for tier in tiers)
                space = SpaceAvailability.of(claims, total, facts.cached)
                with_weights[facts.id] = replace(offers[facts.id], bytes_there=there, space=space)
        chosen = assign_nodes(compute, [*with_weights.values()])
        offers.update({node: reserve(offers[node], compute) for node in chosen})
        nodes[job.address] = chosen
    return nodes


def _offers(inputs: PlanInputs, cluster: Address) -> Iterator[NodeOffer]:
    """Yield offers of reachable nodes in the provider's order; of all if unqueried.

    Quarantined nodes offer nothing.
    """
    known = inputs.nodes.get(cluster, ())
    by_id = {facts.id: facts for facts in known if facts.id not in inputs.quarantined}
    nodes = inputs.planned_nodes.get(cluster, ())
    names = [node.id for node in nodes if node.id not in inputs.quarantined]
    for node in [name for name in names if name in by_id] or names or by_id:
        facts = by_id.get(node)
        free = facts.reported["free_resources"] if facts else None
        if free is None:
            yield NodeOffer(node, gpus=None)
        else:
            yield NodeOffer(
                node, free["gpus"], len(free["live"]), cpus=free["cpus"], memory=free["memory"]
            )


_FORECAST_RUNS = 10
"""The last completed runs, by which a new run is forecast."""


def create_after_mirroring(inputs: PlanInputs, change: Change) -> Change:
    """Let a cluster that costs money wait until the weights of its jobs are mirrored."""
    if not _costs_money(inputs, change) or change.action in REMOVES:
        return change
    resources = inputs.desired.resources
    weights = {
        mount.address
        for job in inputs.desired.jobs_on(change.address)
        for mount in job.job_spec.weights
        if mount.address in resources and change.address not in resources[mount.address].depends_on
    }
    return replace(change, waits_for=tuple(sorted(weights)))


def _costs_money(inputs: PlanInputs, change: Change) -> bool:
    capabilities = inputs.capabilities.get(change.provider)
    is_cluster = change.address.kind is Kind.CLUSTER
    return is_cluster and capabilities is not None and capabilities.costs_money


def hourly_cost(inputs: PlanInputs, changes: Iterable[Change]) -> float:
    """Sum up the hourly prices of all nodes of new runs, each node once.

    For ranks without a known node, the cheapest remaining nodes count.
    """
    used: dict[Address, set[str]] = {}
    unknown: dict[Address, int] = {}
    for job in starting_changes(changes):
        cluster = job.job_spec.cluster_address
        rank_placements = inputs.rank_placements.get(job.address, ())
        used.setdefault(cluster, set()).update(rank_placements)
        missing = job.job_spec.compute.node_count - len(rank_placements)
        unknown[cluster] = unknown.get(cluster, 0) + missing
    cost: float = 0
    for cluster, placed in used.items():
        resource = inputs.desired.resources.get(cluster)
        default = (resource.cluster_spec.price_per_hour if resource else None) or 0.0
        nodes = [node.id for node in inputs.planned_nodes.get(cluster, ())]
        unused = sorted(inputs.prices.get(node, default) for node in nodes if node not in placed)
        known = sum(inputs.prices.get(node, default) for node in placed)
        missing = unknown[cluster]
        cost += known + (sum(unused[:missing]) if nodes else default * missing)
    return round(cost, 6)


def unattended_costs(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[UnattendedCost]:
    """Yield what the machines of each cluster that costs money cost if no one returns; unknown to untrusted plans."""
    for change in () if inputs.options.untrusted else changes:
        nodes = inputs.planned_nodes.get(change.address)
        if change.action in REMOVES or not (nodes and _costs_money(inputs, change)):
            continue
        jobs = inputs.desired.jobs_on(change.address)
        keeps = any(job.job_spec.runtime.checkpointing_config.enabled for job in jobs)
        ends = [
            min(_ends(node, boots=change.acts, keeps=keeps), default=(inf, "")) for node in nodes
        ]
        default = inputs.desired.resources[change.address].cluster_spec.price_per_hour
        prices = [inputs.prices.get(node.id, nan if default is None else default) for node in nodes]
        cost = sum(price * last / 3600 for price, (last, _) in zip(prices, ends, strict=True))
        seconds, end = max(ends)
        figures = (seconds, sum(prices), round(cost, 6))
        known = [figure if isfinite(figure) else None for figure in figures]
        yield UnattendedCost(change.address, len(nodes), end, *known)


def _ends(node: Node, *, boots: bool, keeps: bool) -> Iterator[tuple[float, str]]:
    """Yield the seconds until each end of an idle machine; ``keeps``: it may have checkpoints that are not uploaded."""
    if node.shutdown:
        idle = node.idle_timeout * (2 if keeps else 1)
        yield idle + (node.boot_timeout if boots else 0.0), "guest"
    if node.max_lifetime is not None:
        yield node.max_lifetime, "provider"


def run_forecasts(inputs: PlanInputs, changes: Sequence[Change]) -> dict[Address, RunForecast]:
    """Return a forecast of each new run."""
    costs_nothing = not hourly_cost(inputs, changes)
    forecasts = {}
    for job in starting_changes(changes):
        recorded = inputs.state.resources.get(job.address)
        runs = (
            [RunRecord.from_json(run) for run in recorded.outputs.get("runs", ())]
            if recorded
            else []
        )
        completed = [run for run in runs if run.status is RunStatus.COMPLETED]
        took = [run.phases["running"] for run in completed if "running" in run.phases]
        forecasts[job.address] = RunForecast(
            gpus=_gpus(inputs, job, completed),
            seconds=tuple(took[-_FORECAST_RUNS:]),
            max_seconds=job.job_spec.max_duration_seconds,
            hourly_cost=0.0 if costs_nothing else hourly_cost(inputs, [job]),
        )
    return forecasts


def _gpus(inputs: PlanInputs, job: Change, completed: Sequence[RunRecord]) -> int | None:
    """Return the GPUs of a new run: as declared, else as claimed by the last run, else all of its nodes."""
    compute = job.job_spec.compute
    if compute.gpus is not None:
        return compute.gpus * compute.node_count
    if completed and any(rank.gpus for rank in completed[-1].ranks):
        return sum(rank.gpus for rank in completed[-1].ranks)
    nodes = {node.id: node for node in inputs.nodes.get(job.job_spec.cluster_address, ())}
    places = inputs.rank_placements.get(job.address, ())
    is_known = len(places) == compute.node_count and all(place in nodes for place in places)
    return sum(nodes[place].usable_gpus() for place in places) if is_known else None
