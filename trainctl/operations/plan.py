"""Survey, then plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from trainctl.errors import NodeError, StalePlan, TrainctlError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.operations.jobs.runs import unrecorded_runs
from trainctl.operations.mirrors import is_present
from trainctl.operations.preconnect import connect
from trainctl.operations.secrets import trust_violations
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.survey.caches import survey_caches
from trainctl.operations.survey.checks import mirror_overlaps, secret_leaks, unsupported
from trainctl.operations.survey.code import CodeSurveyResult, scan_tree, survey_code
from trainctl.operations.survey.mirror import MirrorSurveyResult, survey_mirror
from trainctl.operations.survey.nodes import survey_nodes
from trainctl.operations.survey.weights import WeightsSurveyResult, survey_weights
from trainctl.operations.workspace import Workspace
from trainctl.plan.graph import planned_addresses
from trainctl.plan.plan_file import remaining, staleness
from trainctl.plan.planner import make_plan
from trainctl.plan.values import (
    CacheFacts,
    Observation,
    Plan,
    PlanInputs,
    PlanOptions,
    RerunRequest,
)
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.jobs import observe_jobs
from trainctl.resources.registry import handlers
from trainctl.resources.run_control import RunControl
from trainctl.weights.mirrors import is_remote

_STATE_ONLY_KINDS = frozenset({Kind.PROJECT, Kind.CACHE})
"""Kinds of which nothing is anywhere but in the state."""


def create_plan(
    workspace: Workspace,
    options: PlanOptions,
    look: SurveyOptions,
    starts: Mapping[Address, RerunRequest] | None = None,
) -> Plan:
    """The plan for the world as it is now. Appends nothing, writes nothing."""
    state = workspace.ledger.state()
    desired = workspace.desired
    diagnostics = list(desired.warnings)
    # First of all: if trust can't be read nothing is asked.
    refused = [] if options.destroy else trust_violations(workspace)
    known = {one.summary for one in refused}
    diagnostics += refused
    if not options.destroy:
        connect(workspace, state, look)
    with ThreadPoolExecutor(3, thread_name_prefix="look") as pool:
        if look.refresh and not look.offline:
            pool.submit(workspace.mirror.connect)
        recorded = pool.submit(_refresh_recorded, workspace, state, look)
        scanned = None if options.destroy else pool.submit(survey_code, workspace)
        among = planned_addresses(desired, state, options)
        weights = (
            WeightsSurveyResult()
            if options.destroy
            else survey_weights(workspace, state, look, among)
        )
        mirror = weights.mirror
        if options.destroy and look.refresh and not (look.offline and is_remote(workspace.mirror)):
            mirror = survey_mirror(workspace, state)
        if not (look.refresh and mirror.asked):
            mirror = MirrorSurveyResult(site=workspace.mirror_site())
        code = scanned.result() if scanned else CodeSurveyResult()
        nodes = survey_nodes(
            workspace,
            state,
            weights,
            code.needs,
            asked=lambda provider: not options.destroy and _is_queried(workspace, provider, look),
            parallelism=look.parallelism,
        )
        observed, caches, unrecorded_runs = recorded.result()
    if not options.destroy:
        diagnostics += [
            *unsupported(desired),
            *mirror_overlaps(workspace),
            *secret_leaks(workspace, weights.facts),
        ]
    inputs = PlanInputs(
        desired=desired,
        state=state,
        observed={**observed, **observe_mirrored(state, mirror)},
        unrecorded_runs=unrecorded_runs,
        code=code.trees,
        weights=weights.facts,
        nodes=nodes.facts,
        node_names=nodes.names,
        prices=nodes.prices,
        missing_requirements=code.missing_requirements,
        caches=caches,
        options=options,
        lock_readonly=look.writes_lock is False,
        policies=() if options.destroy else workspace.trust.policies,
        starts=starts or {},
        diagnostics=(
            *diagnostics,
            *(
                diagnostic
                for diagnostic in weights.diagnostics
                if not (diagnostic.forbids and diagnostic.summary in known)
            ),
            *code.problems,
            *nodes.diagnostics,
        ),
        unreachable_nodes=frozenset(nodes.unreachable_nodes),
    )
    return make_plan(inputs)


def _refresh_recorded(
    workspace: Workspace, state: State, look: SurveyOptions
) -> tuple[
    dict[Address, Observation],
    dict[Address, tuple[CacheFacts, ...]],
    dict[Address, tuple[RunRecord, ...]],
]:
    """Refresh what is recorded outside the mirror, and what attempts have begun without a record."""
    if not look.refresh:
        return {}, {}, {}
    near = _local_state(workspace, state) if look.offline else state
    found = observe(workspace, near, look.parallelism)
    return found, survey_caches(workspace, near, look.parallelism), unrecorded_runs(workspace, near)


def _is_queried(workspace: Workspace, provider: str, look: SurveyOptions) -> bool:
    """Whether a provider's nodes are asked; offline only those that are this machine."""
    return look.refresh and (not look.offline or workspace.agents.shares_disk(provider))


def _local_state(workspace: Workspace, state: State) -> State:
    """Of what is recorded that which is on this machine."""
    clusters = {
        resource.address.name: workspace.agents.shares_disk(resource.provider)
        for resource in state.resources.values()
        if resource.address.kind is Kind.CLUSTER
    }

    def is_near(one: RecordedResource) -> bool:
        where = (
            one.address.name if one.address.kind is Kind.CLUSTER else one.attributes.get("cluster")
        )
        return where is None or clusters.get(str(where), False)

    return replace(
        state, resources={name: one for name, one in state.resources.items() if is_near(one)}
    )


def refuse_stale(workspace: Workspace, plan: Plan) -> Plan:
    """What of a saved plan is still to be done; StalePlan says what moved since it was made."""
    state = workspace.ledger.state()
    left = replace(plan, changes=remaining(plan, state))
    moved = [*map(str, staleness(plan, state)), *_changed_code(workspace, left)]
    if moved:
        raise StalePlan("the saved plan is stale", "\n".join([*moved, "Plan again."]))
    return left


def _changed_code(workspace: Workspace, plan: Plan) -> Iterator[str]:
    """Jobs whose code is not the one that was reviewed."""
    for change in plan.changes:
        if change.address not in plan.code or change.action is Action.NOOP:
            continue
        tree = scan_tree(workspace, change.job_spec.code.path)
        if isinstance(tree, TrainctlError):
            yield f"{change.address}: {tree.summary}"
        elif tree.digest != plan.code[change.address].digest:
            yield f"{change.address}: its code has changed since the plan was made"


def observe(workspace: Workspace, state: State, parallelism: int) -> dict[Address, Observation]:
    """What a look at everything that is recorded finds, but for what is in the mirror."""
    kinds = handlers(workspace.services())

    def look(recorded: RecordedResource) -> Observation:
        try:
            return kinds[recorded.address.kind].read(recorded, state.resources.get)
        except NodeError as failure:
            return Observation(ResourceStatus.UNREACHABLE, detail=failure.summary)

    found = {
        resource.address: look(resource)
        for resource in state.resources.values()
        if resource.address.kind in _STATE_ONLY_KINDS
    }
    jobs = [resource for resource in state.resources.values() if resource.address.kind is Kind.JOB]
    far = _STATE_ONLY_KINDS | {Kind.JOB, Kind.WEIGHTS}
    others = [resource for resource in state.resources.values() if resource.address.kind not in far]
    with ThreadPoolExecutor(parallelism, thread_name_prefix="read") as pool:
        runs = pool.submit(observe_jobs, RunControl(workspace.agents, state.resources.get), jobs)
        found |= zip((other.address for other in others), pool.map(look, others), strict=True)
        return {**found, **runs.result()}


def observe_mirrored(state: State, mirror: MirrorSurveyResult) -> dict[Address, Observation]:
    """Observations of recorded weights by a survey of the mirror; without one, only of those that are in another mirror."""
    weights = [
        resource for resource in state.resources.values() if resource.address.kind is Kind.WEIGHTS
    ]
    found = ((item.address, _observe_mirrored_weights(item, mirror)) for item in weights)
    return {address: seen for address, seen in found if seen is not None}


def _observe_mirrored_weights(
    weights: RecordedResource, mirror: MirrorSurveyResult
) -> Observation | None:
    if mirror.problem is not None:
        return Observation(ResourceStatus.UNREACHABLE, detail=mirror.problem.summary)
    recorded = mirror.site and mirror.site.of(weights.outputs)
    moved = mirror.site is not None and recorded is not None and mirror.site.differs_from(recorded)
    # A directory that isn't here is on another machine, where the same project is applied.
    if recorded and moved and is_present(recorded.url):
        return Observation(ResourceStatus.PRESENT, other_mirror=str(recorded))
    if not mirror.asked:
        return None
    if weights.outputs.get("listing") in mirror.listings:
        return Observation(ResourceStatus.PRESENT)
    return Observation(ResourceStatus.MISSING, detail=f"the mirror was {recorded}" if moved else "")
