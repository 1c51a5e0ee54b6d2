"""From values to a plan. DESIGN.md beside this file says what must hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

from trainctl.model.action import Action, Reason
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic
from trainctl.plan import caches, checks
from trainctl.plan.deliveries import delivery_lines, delivery_problems
from trainctl.plan.diff import plain, plan_digest
from trainctl.plan.graph import REMOVES, expanded, ordered, selected
from trainctl.plan.hosts import host_problems, image_lines, image_problems
from trainctl.plan.jobs import job_wish, plan_job, plan_start
from trainctl.plan.placement import claiming, likely, starting
from trainctl.plan.policies import violations
from trainctl.plan.resources import Wish, plan_resource
from trainctl.plan.runs import begun_run, live_run, never_recorded, resumed
from trainctl.plan.subject import Subject, subject
from trainctl.plan.values import Change, DeliveryLine, Drift, Inputs, Plan, WeightsLine
from trainctl.plan.ways import relayed
from trainctl.plan.weights import pins, weights_lines, wish_of_weights
from trainctl.spi.provider import Presence


def make_plan(inputs: Inputs) -> Plan:
    """What has to change so that the world is as desired. Problems are in the plan's diagnostics; nothing is raised."""
    inputs = replace(inputs, options=expanded(inputs))
    subjects = [subject(inputs, address) for address in selected(inputs)]
    changes = _refreshed(subjects) if inputs.options.refresh_only else _decided(inputs, subjects)
    changes = list(ordered(changes, inputs.state.resources))
    inputs = replace(inputs, seats=likely(inputs, changes))
    changes = [claiming(inputs, change) for change in changes]
    weights = weights_lines(inputs, changes)
    deliveries = delivery_lines(inputs, changes, weights)
    cost = hourly_cost(inputs, changes)
    acting = {change.address for change in changes if change.action not in REMOVES}
    return Plan(
        lineage=inputs.state.lineage,
        serial=inputs.state.serial,
        manifest_digest=inputs.desired.manifest_digest,
        changes=tuple(changes),
        drift=tuple(drifted(subjects)),
        weights=weights,
        deliveries=deliveries,
        images=image_lines(inputs, changes),
        resolved={
            address: facts.resolved
            for address, facts in sorted(inputs.weights.items())
            if facts.resolved is not None and address in acting
        },
        code={
            job.address: inputs.code[job.address]
            for job in starting(changes)
            if job.address in inputs.code
        },
        hourly_cost=cost,
        diagnostics=(
            *_diagnostics(inputs, subjects, changes, weights, deliveries),
            *violations(inputs.policies, inputs.desired.resources, cost),
        ),
        options=inputs.options,
        digest=plan_digest(changes),
    )


def complete(plan: Plan) -> bool:
    """Whether the world will be as desired once the plan is applied, as far as anyone can know now."""
    narrowed = plan.options.targets or plan.options.excludes or plan.options.refresh_only
    return plan.usable and not narrowed


def applyable(plan: Plan) -> bool:
    """Whether there is something to apply and nothing forbids it."""
    records_drift = plan.options.refresh_only and bool(plan.drift)
    return plan.usable and (plan.has_changes or records_drift)


def _refreshed(subjects: Iterable[Subject]) -> list[Change]:
    return [
        replace(one.remove(Action.NOOP), after=one.before, outputs_after=one.outputs)
        for one in subjects
        if one.recorded is not None
    ]


def _decided(inputs: Inputs, subjects: Iterable[Subject]) -> list[Change]:
    found = list(subjects)
    wishes = {
        one.address: wish_of_weights(one, inputs.weights.get(one.address))
        for one in found
        if one.address.kind is Kind.WEIGHTS and one.resource is not None
    }
    known = pins(inputs, wishes)
    changes = [
        resumed(one, change)
        for one in found
        if (change := _decide(inputs, one, wishes, known)) is not None
    ]
    return caches.told(inputs, changes)


def _decide(
    inputs: Inputs, one: Subject, wishes: Mapping[Address, Wish], known: dict[str, object]
) -> Change | None:
    if one.resource is None:
        if caches.outlives_its_jobs(inputs, one):
            return caches.kept(one)
        if one.recorded is not None:
            return plan_removal(one)
        return never_recorded(one)
    if one.address.kind is Kind.JOB:
        today = job_wish(one, inputs.code.get(one.address), known)
        start = inputs.starts.get(one.address)
        return plan_start(one, today, start) if start else plan_job(one, today)
    wish = wishes.get(one.address) or Wish(one.wanted({}))
    return plan_resource(one, wish)


def _diagnostics(
    inputs: Inputs,
    subjects: list[Subject],
    changes: list[Change],
    weights: tuple[WeightsLine, ...],
    deliveries: tuple[DeliveryLine, ...],
) -> tuple[Diagnostic, ...]:
    """Each once: what came with the inputs, then what planning found."""
    by_address = {change.address: change for change in changes}
    planned = [one for one in subjects if one.address in by_address]
    given = (*inputs.desired.warnings, *inputs.diagnostics)
    found: list[Diagnostic] = []
    found += checks.unknown_addresses(inputs)
    found += checks.unseen(inputs, planned)
    if not inputs.options.refresh_only:
        found += checks.protected(inputs, changes)
        found += checks.displaced(inputs, changes)
        found += checks.sources(inputs, changes)
        found += checks.failed_runs(planned, by_address)
        found += checks.waits(inputs, planned, by_address)
        found += checks.circles(inputs, planned, by_address)
        found += relayed(weights)
        found += delivery_problems(inputs, changes, deliveries)
        found += host_problems(inputs, changes)
        found += image_problems(inputs, changes)
        found += caches.cache_problems(inputs, changes)
    return tuple(dict.fromkeys(_placed(inputs, one) for one in (*given, *found)))


def _placed(inputs: Inputs, one: Diagnostic) -> Diagnostic:
    """With the place in the manifest of the resource that it is about."""
    if one.address is None or one.where is not None:
        return one
    resources = inputs.desired.resources.items()
    where = next((found.where for name, found in resources if str(name) == one.address), None)
    return replace(one, where=where)


def plan_removal(subject: Subject) -> Change:
    """Delete; a job whose block is gone and whose run has ended is forgotten, as nothing of it can be undone."""
    stops = live_run(subject) or begun_run(subject)
    reason = None if subject.destroying else Reason.NO_CONFIG
    if subject.address.kind is Kind.JOB and stops is None and not subject.destroying:
        return subject.remove(Action.FORGET, Reason.ENDED)
    return subject.remove(Action.DELETE, reason, stops=stops)


def drifted(subjects: Iterable[Subject]) -> Iterator[Drift]:
    """What is not as recorded. Of jobs only those that vanished: that a run goes on and ends is its nature."""
    for resource in subjects:
        found, recorded = resource.observed, resource.recorded
        if found is None or recorded is None:
            continue
        before = {**resource.before, **plain(recorded.outputs)}
        if found.presence is Presence.GONE:
            yield Drift(resource.address, before, None, found.detail)
        elif found.presence is Presence.PRESENT and resource.address.kind is not Kind.JOB:
            after = {**before, **plain(found.outputs)}
            if after != before:
                yield Drift(resource.address, before, after, found.detail)


def hourly_cost(inputs: Inputs, changes: Iterable[Change]) -> float:
    """Price per hour of the nodes that new runs use, in the currency of the manifest; a node is paid for once.

    A rank whose node isn't known yet counts as the cheapest of those that are left.
    """
    used: dict[Address, set[str]] = {}
    unknown: dict[Address, int] = {}
    for job in starting(changes):
        cluster = job.job_spec.cluster_address
        seats = inputs.seats.get(job.address, ())
        used.setdefault(cluster, set()).update(seats)
        more = job.job_spec.compute.node_count - len(seats)
        unknown[cluster] = unknown.get(cluster, 0) + more
    return round(sum(_of_cluster(inputs, *one, unknown[one[0]]) for one in used.items()), 6)


def _of_cluster(inputs: Inputs, cluster: Address, used: Set[str], unknown: int) -> float:
    resource = inputs.desired.resources.get(cluster)
    usual = (resource.cluster_spec.price_per_hour if resource else None) or 0.0
    nodes = [f"{cluster.name}/{name}" for name in inputs.node_names.get(cluster, ())]
    left = sorted(inputs.prices.get(node, usual) for node in nodes if node not in used)
    known = sum(inputs.prices.get(node, usual) for node in used)
    return known + (sum(left[:unknown]) if nodes else usual * unknown)
