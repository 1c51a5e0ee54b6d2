"""Costs of machines: notes, offers, and the hourly cost of new runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.graph import REMOVES
from trainctl.plan.placement import starting_changes
from trainctl.plan.values import Change, PlanInputs, RunForecast
from trainctl.plugin_api.machines import Offer

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


def needed_offers(
    inputs: PlanInputs, changes: Iterable[Change]
) -> dict[Address, tuple[Offer, ...]]:
    """Return the offers of the clusters that the plan changes."""
    idle = (*REMOVES, Action.NOOP, Action.READ)
    acting = {change.address for change in changes if change.action not in idle}
    return {address: offers for address, offers in inputs.offers.items() if address in acting}


def _costs_money(inputs: PlanInputs, change: Change) -> bool:
    capabilities = inputs.capabilities.get(change.provider)
    is_cluster = change.address.kind is Kind.CLUSTER
    return is_cluster and capabilities is not None and capabilities.costs_money


def note_cost(inputs: PlanInputs, change: Change) -> Change:
    """Add a note to a cluster whose machines start or stop costing money."""
    if not _costs_money(inputs, change):
        return change
    notes = {
        Action.CREATE: "its machines cost money until they are destroyed",
        Action.REPLACE: "its machines cost money until they are destroyed",
        Action.DELETE: "its machines stop costing money",
    }
    note = notes.get(change.action, "")
    return replace(change, note="; ".join(filter(None, (change.note, note))))


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
    return round(sum(_cluster_cost(inputs, *item, unknown[item[0]]) for item in used.items()), 6)


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


def _cluster_cost(inputs: PlanInputs, cluster: Address, used: Set[str], unknown: int) -> float:
    resource = inputs.desired.resources.get(cluster)
    default = (resource.cluster_spec.price_per_hour if resource else None) or 0.0
    nodes = [f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())]
    unused = sorted(inputs.prices.get(node, default) for node in nodes if node not in used)
    known = sum(inputs.prices.get(node, default) for node in used)
    return known + (sum(unused[:unknown]) if nodes else default * unknown)
