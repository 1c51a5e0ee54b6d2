"""The planner; see DESIGN.md for its invariants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import replace
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.plan import caches, checks, placement
from trainctl.plan.changes import (
    REMOVES,
    expand_matrix_names,
    order_changes,
    plain,
    plan_digest,
    policies_digest,
    select_addresses,
    with_coverage,
)
from trainctl.plan.deliveries import delivery_problems, delivery_rows, relay_warnings
from trainctl.plan.jobs import desired_job_attributes, plan_job, plan_rerun, with_reuse
from trainctl.plan.placement import likely_nodes, starting_changes
from trainctl.plan.resources import (
    DesiredValues,
    ResourceContext,
    live_run,
    plan_cleanup,
    plan_resource,
    plan_unchanged,
    resource_context,
    unrecorded_run,
    with_resumed_attempt,
)
from trainctl.plan.values import BatchRow, Change, DeliveryRow, Drift, Plan, PlanInputs, WeightsRow
from trainctl.plan.weights import desired_weights_attributes, pins, weights_rows
from trainctl.plugin_api.provider import ResourceStatus

if TYPE_CHECKING:
    from trainctl.plugin_api.scheduler import BatchForecast


def make_plan(inputs: PlanInputs) -> Plan:
    """Plan all changes. Problems are in the plan's diagnostics and never raised."""
    inputs = replace(inputs, options=expand_matrix_names(inputs))
    addresses = select_addresses(inputs)
    unchanged = plan_unchanged(inputs, addresses)
    contexts = [resource_context(inputs, each) for each in addresses if each not in unchanged]
    if inputs.options.refresh_only:
        changes = [
            context.remove(Action.NOOP, after=context.before, outputs_after=context.outputs)
            for context in contexts
            if context.recorded is not None
        ]
    else:
        changes = _decide_all(inputs, contexts)
    changes = [
        placement.create_after_mirroring(inputs, each) for each in _with_edits(inputs, changes)
    ]
    planned = unchanged | {change.address: change for change in changes}
    sorted_changes = (planned[address] for address in addresses if address in planned)
    order = [each.address for each in order_changes(sorted_changes, inputs.state.resources)]
    changes = [planned[address] for address in order if address not in unchanged]
    inputs = replace(inputs, rank_placements=likely_nodes(inputs, changes))
    changes = [placement.with_note(inputs, change) for change in changes]
    changes = [with_coverage(inputs.desired, inputs.state.versions, change) for change in changes]
    planned |= {change.address: change for change in changes}
    weights = weights_rows(inputs, changes)
    deliveries = delivery_rows(inputs, changes, weights)
    policies = policies_digest(inputs.policies)
    acting = {change.address for change in changes if change.action not in REMOVES}
    return Plan(
        lineage=inputs.state.lineage,
        serial=inputs.state.serial,
        manifest_digest=inputs.desired.manifest_digest,
        changes=tuple(planned[address] for address in order),
        drift=tuple(find_drift(contexts)),
        weights=weights,
        deliveries=deliveries,
        images=checks.image_rows(inputs, changes),
        offers={
            change.address: inputs.offers[change.address]
            for change in changes
            if change.address in inputs.offers
            and change.action not in (*REMOVES, Action.NOOP, Action.READ)
        },
        batch_systems=batch_rows(inputs, changes),
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
        hourly_cost=placement.hourly_cost(inputs, changes),
        unattended=tuple(placement.unattended_costs(inputs, planned.values())),
        runs=placement.run_forecasts(inputs, changes),
        diagnostics=_diagnostics(inputs, contexts, changes, weights, deliveries),
        edits=inputs.edits,
        options=inputs.options,
        policies=policies,
        digest=plan_digest(changes, inputs.state.lineage, policies),
    )


def _with_edits(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Change]:
    edits = inputs.edits.addresses
    origins = {new: old for old, new in reversed([*inputs.edits.renames.items()])}
    for each in changes:
        if each.address in edits:
            yield replace(each, edit=edits[each.address], previous=origins.get(each.address))
        else:
            yield each


def is_complete(plan: Plan) -> bool:
    """Whether the plan covers all resources and can be applied."""
    partial = plan.options.targets or plan.options.excludes or plan.options.refresh_only
    return plan.usable and not partial


def is_applyable(plan: Plan) -> bool:
    """Whether the plan has changes and can be applied."""
    records_drift = plan.options.refresh_only and bool(plan.drift)
    return plan.usable and (plan.has_changes or records_drift)


def _decide_all(inputs: PlanInputs, contexts: Iterable[ResourceContext]) -> list[Change]:
    contexts = list(contexts)
    values_by_address = {
        context.address: desired_weights_attributes(context, inputs.weights.get(context.address))
        for context in contexts
        if context.address.kind is Kind.WEIGHTS and context.resource is not None
    }
    planned_pins = pins(inputs, values_by_address)
    planned_pins |= {name: pin for name, (pin, _) in inputs.best.items()}
    decided = dict[Address | None, Change | None]()
    for context in sorted(contexts, key=lambda context: bool(_followed_job(context))):
        followed = decided.get(_followed_job(context))
        decided[context.address] = _decide(
            inputs, context, values_by_address, planned_pins, followed
        )
    changes = [
        with_resumed_attempt(context, change)
        for context in contexts
        if (change := decided[context.address]) is not None
    ]
    return caches.describe_removals(inputs, changes)


def _followed_job(context: ResourceContext) -> Address | None:
    section = context.resource and context.resource.attributes.get("for_each_checkpoint")
    return Address.parse(section["job"]) if section else None


def _decide(
    inputs: PlanInputs,
    context: ResourceContext,
    values_by_address: Mapping[Address, DesiredValues],
    planned_pins: dict[str, object],
    followed: Change | None,
) -> Change | None:
    address = context.address
    if context.resource is None:
        removed = inputs.desired.moves.removed
        destroy = None if context.destroying else removed.get(address, removed.get(address.group))
        if (destroy is None or not context.recorded) and caches.outlives_its_jobs(inputs, context):
            note, before = "no job uses it; deleted with its project", context.before
            return context.remove(
                Action.NOOP, note=note, after=before, outputs_after=context.outputs
            )
        if context.recorded is None:
            return plan_cleanup(context)
        if destroy is False:  # ``removed`` says so: only forgotten, and a live run continues
            return context.remove(Action.FORGET, ActionReason.REMOVED)
        stops = live_run(context) or unrecorded_run(context)
        deleted = context.destroying or destroy or stops is not None
        if address.kind is Kind.JOB and not deleted:  # undeclared, without a live run
            return context.remove(Action.FORGET, ActionReason.ENDED)
        reason = None if context.destroying else ActionReason.NO_CONFIG
        return context.remove(Action.DELETE, reason, stops=stops)
    if address.kind is Kind.JOB:
        today = desired_job_attributes(context, inputs.code.get(address), planned_pins)
        start = inputs.starts.get(address)
        if start:
            return plan_rerun(context, today, start)
        planned = plan_job(context, today, followed)
        return with_reuse(planned, inputs.reusable.get(address))
    values = values_by_address.get(address) or DesiredValues(context.desired({}))
    return plan_resource(context, values)


def _diagnostics(
    inputs: PlanInputs,
    contexts: list[ResourceContext],
    changes: list[Change],
    weights: tuple[WeightsRow, ...],
    deliveries: tuple[DeliveryRow, ...],
) -> tuple[Diagnostic, ...]:
    by_address = {change.address: change for change in changes}
    planned = [context for context in contexts if context.address in by_address]
    problems = [*inputs.desired.warnings, *inputs.diagnostics]
    problems += checks.selection_errors(inputs, by_address)
    problems += checks.unobserved_warnings(inputs, planned)
    if not inputs.options.refresh_only:
        problems += checks.protection_errors(inputs, changes)
        problems += checks.displaced_run_errors(inputs, changes)
        problems += checks.source_problems(inputs, changes)
        problems += checks.failed_run_warnings(planned, by_address)
        problems += checks.dependency_problems(planned, by_address)
        problems += checks.cycle_errors(planned, by_address)
        problems += relay_warnings(weights)
        problems += batch_problems(inputs, changes)
        problems += delivery_problems(inputs, changes, deliveries)
        problems += checks.host_problems(inputs, changes)
        problems += checks.image_problems(inputs, changes)
        problems += checks.spot_warnings(inputs, changes)
        problems += caches.cache_problems(inputs, changes)
    addresses = {problem.address for problem in problems if not problem.where}
    positions = {
        text: item.where
        for address, item in (inputs.desired.resources.items() if addresses else ())
        if (text := str(address)) in addresses
    }
    placed = (
        problem if problem.where else replace(problem, where=positions.get(problem.address or ""))
        for problem in problems
    )
    return tuple(dict.fromkeys(placed))


def find_drift(contexts: Iterable[ResourceContext]) -> Iterator[Drift]:
    """Report observed resources that differ from recorded ones; only missing jobs."""
    for context in contexts:
        observed, recorded = context.observed, context.recorded
        if observed is None or recorded is None:
            continue
        before = {**context.before, **plain(recorded.outputs)}
        if observed.status is ResourceStatus.MISSING:
            yield Drift(context.address, before, None, observed.detail)
        elif observed.status is ResourceStatus.PRESENT and context.address.kind is not Kind.JOB:
            after = {**before, **plain(observed.outputs)}
            if after != before:
                yield Drift(context.address, before, after, observed.detail)


def batch_rows(inputs: PlanInputs, changes: Iterable[Change]) -> tuple[BatchRow, ...]:
    """Return a row for each batch system that gets new runs."""
    jobs: dict[Address, list[tuple[Address, BatchForecast]]] = {}
    for job in starting_changes(changes):
        cluster = job.job_spec.cluster_address
        if cluster in inputs.batch_systems:
            jobs.setdefault(cluster, []).append((job.address, _forecast(inputs, job)))
    return tuple(
        BatchRow(cluster, inputs.batch_systems[cluster].partitions, tuple(forecasts))
        for cluster, forecasts in jobs.items()
    )


def batch_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report batch systems that don't respond, and jobs that they could not start."""
    for cluster, facts in inputs.batch_systems.items():
        if facts.problem:
            yield warning(
                facts.problem,
                "The plan doesn't know what is free.",
                address=str(cluster),
                code="scheduler-unreachable",
            )
    for job in starting_changes(changes):
        forecast, spec = _forecast(inputs, job), job.job_spec
        compute, cluster = spec.compute, spec.cluster_address
        gpus, per_node = compute.gpus or 0, (forecast.cpus or 0) // compute.node_count
        if gpus and compute.cpu_count is None and 0 < per_node <= max(2, gpus):
            yield warning(
                f"{cluster} would give it {per_node}"
                f" processor{'s' if per_node > 1 else ''} for {gpus} GPU{'s' if gpus > 1 else ''} per node",
                "Set compute.cpu_count: the default is that of the batch system, not all of a node.",
                address=str(job.address),
                code="few-processors",
            )
        if forecast.refusal:
            yield warning(
                f"{cluster} could not start it now: {forecast.refusal}",
                "If no node can ever start it, change compute or max_duration of the job.",
                address=str(job.address),
                code="job-refused",
            )


def _forecast(inputs: PlanInputs, job: Change) -> BatchForecast:
    from trainctl.plugin_api.scheduler import BatchForecast

    facts = inputs.batch_systems.get(job.job_spec.cluster_address)
    return facts.forecasts.get(job.address, BatchForecast()) if facts else BatchForecast()
