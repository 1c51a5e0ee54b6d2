"""From values to a plan. DESIGN.md beside this file says what must hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic
from trainctl.plan import caches
from trainctl.plan.diff import plain, plan_digest
from trainctl.plan.graph import REMOVES, expand_matrix_names, order_changes, select_addresses
from trainctl.plan.jobs import desired_job_attributes, plan_job, plan_rerun
from trainctl.plan.placement import likely_nodes, note_claimed_gpus, starting_changes
from trainctl.plan.resource_context import ResourceContext, resource_context
from trainctl.plan.resources import DesiredValues, plan_resource
from trainctl.plan.runs import live_run, plan_cleanup, unrecorded_run, with_resumed_attempt
from trainctl.plan.transfers.deliveries import delivery_problems, delivery_rows
from trainctl.plan.transfers.routes import relay_warnings
from trainctl.plan.transfers.weights import desired_weights_attributes, pins, weights_rows
from trainctl.plan.validation import checks
from trainctl.plan.validation.hosts import host_problems, image_problems, image_rows
from trainctl.plan.validation.policies import policy_violations
from trainctl.plan.values import Change, DeliveryRow, Drift, Plan, PlanInputs, WeightsRow
from trainctl.plugin_api.provider import ResourceStatus


def make_plan(inputs: PlanInputs) -> Plan:
    """What has to change so that the world is as desired. Problems are in the plan's diagnostics; nothing is raised."""
    inputs = replace(inputs, options=expand_matrix_names(inputs))
    subjects = [resource_context(inputs, address) for address in select_addresses(inputs)]
    changes = (
        _record_observations(subjects)
        if inputs.options.refresh_only
        else _decide_all(inputs, subjects)
    )
    changes = list(order_changes(changes, inputs.state.resources))
    inputs = replace(inputs, rank_placements=likely_nodes(inputs, changes))
    changes = [note_claimed_gpus(inputs, change) for change in changes]
    weights = weights_rows(inputs, changes)
    deliveries = delivery_rows(inputs, changes, weights)
    cost = hourly_cost(inputs, changes)
    acting = {change.address for change in changes if change.action not in REMOVES}
    return Plan(
        lineage=inputs.state.lineage,
        serial=inputs.state.serial,
        manifest_digest=inputs.desired.manifest_digest,
        changes=tuple(changes),
        drift=tuple(find_drift(subjects)),
        weights=weights,
        deliveries=deliveries,
        images=image_rows(inputs, changes),
        resolved={
            address: facts.resolved
            for address, facts in sorted(inputs.weights.items())
            if facts.resolved is not None and address in acting
        },
        code={
            job.address: inputs.code[job.address]
            for job in starting_changes(changes)
            if job.address in inputs.code
        },
        hourly_cost=cost,
        diagnostics=(
            *_diagnostics(inputs, subjects, changes, weights, deliveries),
            *policy_violations(inputs.policies, inputs.desired.resources, cost),
        ),
        options=inputs.options,
        digest=plan_digest(changes),
    )


def is_complete(plan: Plan) -> bool:
    """Whether the world will be as desired once the plan is applied, as far as anyone can know now."""
    narrowed = plan.options.targets or plan.options.excludes or plan.options.refresh_only
    return plan.usable and not narrowed


def is_applyable(plan: Plan) -> bool:
    """Whether there is something to apply and nothing forbids it."""
    records_drift = plan.options.refresh_only and bool(plan.drift)
    return plan.usable and (plan.has_changes or records_drift)


def _record_observations(subjects: Iterable[ResourceContext]) -> list[Change]:
    return [
        replace(subject.remove(Action.NOOP), after=subject.before, outputs_after=subject.outputs)
        for subject in subjects
        if subject.recorded is not None
    ]


def _decide_all(inputs: PlanInputs, subjects: Iterable[ResourceContext]) -> list[Change]:
    found = list(subjects)
    values_by_address = {
        one.address: desired_weights_attributes(one, inputs.weights.get(one.address))
        for one in found
        if one.address.kind is Kind.WEIGHTS and one.resource is not None
    }
    known = pins(inputs, values_by_address)
    changes = [
        with_resumed_attempt(one, change)
        for one in found
        if (change := _decide(inputs, one, values_by_address, known)) is not None
    ]
    return caches.describe_removals(inputs, changes)


def _decide(
    inputs: PlanInputs,
    one: ResourceContext,
    values_by_address: Mapping[Address, DesiredValues],
    known: dict[str, object],
) -> Change | None:
    if one.resource is None:
        if caches.outlives_its_jobs(inputs, one):
            return caches.keep_cache(one)
        if one.recorded is not None:
            return plan_removal(one)
        return plan_cleanup(one)
    if one.address.kind is Kind.JOB:
        today = desired_job_attributes(one, inputs.code.get(one.address), known)
        start = inputs.starts.get(one.address)
        return plan_rerun(one, today, start) if start else plan_job(one, today)
    desired_values = values_by_address.get(one.address) or DesiredValues(one.wanted({}))
    return plan_resource(one, desired_values)


def _diagnostics(
    inputs: PlanInputs,
    subjects: list[ResourceContext],
    changes: list[Change],
    weights: tuple[WeightsRow, ...],
    deliveries: tuple[DeliveryRow, ...],
) -> tuple[Diagnostic, ...]:
    """Each once: what came with the inputs, then what planning found."""
    by_address = {change.address: change for change in changes}
    planned = [subject for subject in subjects if subject.address in by_address]
    given = (*inputs.desired.warnings, *inputs.diagnostics)
    found: list[Diagnostic] = []
    found += checks.unknown_addresses(inputs)
    found += checks.unobserved(inputs, planned)
    if not inputs.options.refresh_only:
        found += checks.protection_errors(inputs, changes)
        found += checks.displaced_run_errors(inputs, changes)
        found += checks.source_problems(inputs, changes)
        found += checks.failed_run_warnings(planned, by_address)
        found += checks.dependency_problems(inputs, planned, by_address)
        found += checks.cycle_errors(inputs, planned, by_address)
        found += relay_warnings(weights)
        found += delivery_problems(inputs, changes, deliveries)
        found += host_problems(inputs, changes)
        found += image_problems(inputs, changes)
        found += caches.cache_problems(inputs, changes)
    return tuple(dict.fromkeys(_with_position(inputs, one) for one in (*given, *found)))


def _with_position(inputs: PlanInputs, one: Diagnostic) -> Diagnostic:
    """With the place in the manifest of the resource that it is about."""
    if one.address is None or one.where is not None:
        return one
    resources = inputs.desired.resources.items()
    where = next((found.where for name, found in resources if str(name) == one.address), None)
    return replace(one, where=where)


def plan_removal(subject: ResourceContext) -> Change:
    """Delete; a job whose block is gone and whose run has ended is forgotten, as nothing of it can be undone."""
    stops = live_run(subject) or unrecorded_run(subject)
    reason = None if subject.destroying else ActionReason.NO_CONFIG
    if subject.address.kind is Kind.JOB and stops is None and not subject.destroying:
        return subject.remove(Action.FORGET, ActionReason.ENDED)
    return subject.remove(Action.DELETE, reason, stops=stops)


def find_drift(subjects: Iterable[ResourceContext]) -> Iterator[Drift]:
    """What is not as recorded. Of jobs only those that vanished: that a run goes on and ends is its nature."""
    for resource in subjects:
        found, recorded = resource.observed, resource.recorded
        if found is None or recorded is None:
            continue
        before = {**resource.before, **plain(recorded.outputs)}
        if found.status is ResourceStatus.MISSING:
            yield Drift(resource.address, before, None, found.detail)
        elif found.status is ResourceStatus.PRESENT and resource.address.kind is not Kind.JOB:
            after = {**before, **plain(found.outputs)}
            if after != before:
                yield Drift(resource.address, before, after, found.detail)


def hourly_cost(inputs: PlanInputs, changes: Iterable[Change]) -> float:
    """Price per hour of the nodes that new runs use, in the currency of the manifest; a node is paid for once.

    A rank whose node isn't known yet counts as the cheapest of those that are left.
    """
    used: dict[Address, set[str]] = {}
    unknown: dict[Address, int] = {}
    for job in starting_changes(changes):
        cluster = job.job_spec.cluster_address
        rank_placements = inputs.rank_placements.get(job.address, ())
        used.setdefault(cluster, set()).update(rank_placements)
        more = job.job_spec.compute.node_count - len(rank_placements)
        unknown[cluster] = unknown.get(cluster, 0) + more
    return round(sum(_of_cluster(inputs, *item, unknown[item[0]]) for item in used.items()), 6)


def _of_cluster(inputs: PlanInputs, cluster: Address, used: Set[str], unknown: int) -> float:
    resource = inputs.desired.resources.get(cluster)
    usual = (resource.cluster_spec.price_per_hour if resource else None) or 0.0
    nodes = [f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())]
    left = sorted(inputs.prices.get(node, usual) for node in nodes if node not in used)
    known = sum(inputs.prices.get(node, usual) for node in used)
    return known + (sum(left[:unknown]) if nodes else usual * unknown)
