"""Create plans from a survey, and check saved plans."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import BackgroundCall, each
from trainctl.errors import NodeError, StalePlan, StateError, TrainctlError
from trainctl.inputs.code import changed_files
from trainctl.ledger.leases import entry_author
from trainctl.ledger.planned_edits import NO_EDITS, StateEdits, plan_edits
from trainctl.ledger.renaming import renames
from trainctl.ledger.state import ORIGIN, RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.model.specs.job_spec import JobSpec
from trainctl.operations.mirrors import is_present
from trainctl.operations.plan_checks import find_problems
from trainctl.operations.policies import with_policies
from trainctl.operations.preconnect import connect
from trainctl.operations.runs.lookup import unrecorded_runs
from trainctl.operations.runs.reuse import plan_with_reuse
from trainctl.operations.secrets import trust_violations
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.survey.code import CodeSurveyResult, survey_code, survey_directory
from trainctl.operations.survey.nodes import (
    offered_prices,
    survey_batch_systems,
    survey_nodes,
    survey_offers,
)
from trainctl.operations.survey.weights import (
    MirrorSurveyResult,
    WeightsSurveyResult,
    survey_caches,
    survey_mirror,
    survey_weights,
)
from trainctl.operations.workspace import Workspace
from trainctl.plan.changes import planned_addresses, summarize_changes
from trainctl.plan.planner import make_plan
from trainctl.plan.quarantine import quarantined_nodes
from trainctl.plan.values import (
    Observation,
    Plan,
    PlanInputs,
    PlanOptions,
    RerunRequest,
)
from trainctl.plugin_api.machines import PlansMachines
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.handlers import handlers
from trainctl.resources.jobs import observe_jobs
from trainctl.resources.runs.run_control import RunControl
from trainctl.weights.mirrors import is_remote

if TYPE_CHECKING:
    from trainctl.model.diagnostics import Diagnostic
    from trainctl.model.reports import CacheFacts
    from trainctl.plan.plan_file import SavedPlan


def create_plan(
    workspace: Workspace,
    options: PlanOptions,
    survey: SurveyOptions,
    starts: Mapping[Address, RerunRequest] | None = None,
) -> Plan:
    """Survey everything and create a plan. Writes nothing."""
    state = workspace.ledger.state()
    edits = planned_edits(workspace, state, options)
    state = edits.applied_to(state)
    # An unreadable trust file fails here, before the first request.
    violations = [] if options.destroy else trust_violations(workspace)
    online = survey.refresh and not survey.offline
    if not options.destroy:
        connect(workspace, state, survey)

    def is_queried(provider: str) -> bool:
        """Whether to query a provider's nodes; offline only local nodes."""
        if options.destroy or not survey.refresh:
            return False
        return not survey.offline or workspace.agents.shares_disk(provider)

    with ExitStack() as ended:
        begin = ended.enter_context
        if online:
            begin(BackgroundCall(workspace.mirror.connect))
        refreshing = begin(BackgroundCall(_refresh_recorded, workspace, state, survey))
        batch_systems = begin(BackgroundCall(survey_batch_systems, workspace, state, is_queried))
        scanning = None if options.destroy else begin(BackgroundCall(survey_code, workspace))
        weights, mirror = _survey_weights(workspace, state, options, survey)
        code = scanning.result() if scanning else CodeSurveyResult()
        nodes = survey_nodes(
            workspace, state, weights, code.programs, is_queried, survey.parallelism
        )
        planned = {} if options.destroy else nodes.facts.planned_nodes
        offers = survey_offers(workspace, planned, survey.parallelism, online=online)
        observed, caches, unrecorded_runs = refreshing.result()
    problems = () if options.destroy else find_problems(workspace, offers)
    prices = nodes.facts.prices | offered_prices(nodes.facts.planned_nodes, offers)
    inputs = PlanInputs(
        **vars(replace(nodes.facts, prices=prices)),
        desired=workspace.desired,
        state=state,
        observed={**observed, **observe_mirrored(state, mirror)},
        unrecorded_runs=unrecorded_runs,
        code=code.trees,
        weights=weights.facts,
        offers=offers,
        batch_systems=batch_systems.result(),
        missing_requirements=code.missing_requirements,
        caches=caches,
        edits=edits,
        options=options,
        lock_readonly=survey.writes_lock is False,
        quarantined=quarantined_nodes(state),
        policies=workspace.trust.policies,
        starts=starts or {},
        best=_choose_best(workspace) if online else {},
        diagnostics=(
            *workspace.desired.warnings,
            *violations,
            *problems,
            *_without_reported(weights.diagnostics, violations),
            *code.problems,
            *nodes.diagnostics,
        ),
    )
    plan = _make_complete(workspace, inputs, survey)
    return _with_contents(workspace, plan, code, offline=survey.offline)


def _choose_best(workspace: Workspace) -> dict[str, tuple[str, str]]:
    runtimes = (job.attributes["runtime"] for job in workspace.desired.jobs())
    configs = filter(None, (runtime.get("load_checkpoint_config") for runtime in runtimes))
    if not any("metric" in load for config in configs for load in config["checkpoints"]):
        return {}
    from trainctl.operations.runs.results import choose_best  # slow to load

    return choose_best(workspace)


def _make_complete(workspace: Workspace, inputs: PlanInputs, survey: SurveyOptions) -> Plan:
    """Make a plan with what is reused, the machines of providers, what policies say, and its author."""
    online = survey.refresh and not survey.offline
    resolved = partial(_make_plan, workspace, offline=survey.offline)
    make = partial(plan_with_reuse, workspace, make=resolved, queries=online)
    if any(isinstance(workspace.provider(name), PlansMachines) for name in inputs.capabilities):
        from trainctl.operations.machine_plans import plan_with_machines

        make = partial(plan_with_machines, workspace, make=make, offline=survey.offline)
    by = entry_author(workspace.settings.environ)
    plan = with_policies(workspace, make(inputs))
    return replace(plan, author=by.actor, commit=by.commit, created_at=time.time())


def _without_reported(
    found: Iterable[Diagnostic], violations: Iterable[Diagnostic]
) -> Iterator[Diagnostic]:
    """Yield what was found of weights, without the violations of trust that are reported already."""
    reported = {violation.summary for violation in violations}
    return (item for item in found if not (item.forbids and item.summary in reported))


def _make_plan(workspace: Workspace, inputs: PlanInputs, *, offline: bool) -> Plan:
    """Make a plan, with the digests of its images."""
    plan = make_plan(inputs)
    if not plan.images:
        return plan
    from trainctl.operations.contents import resolve_images  # slow to load

    return resolve_images(workspace, plan, offline=offline)


def _with_contents(
    workspace: Workspace, plan: Plan, code: CodeSurveyResult, *, offline: bool
) -> Plan:
    """Return a plan with what changes inside of its resources, if any does."""
    digests = {tree.digest for tree in plan.code.values()}
    files = {key: item for key, item in code.files.items() if key in digests}
    plan = replace(plan, code_files=files, var_files=tuple(map(str, workspace.settings.var_files)))
    if not (plan.images or plan.has_changes):
        return plan
    from trainctl.operations.contents import with_contents  # slow to load

    return with_contents(workspace, plan, offline=offline)


def _survey_weights(
    workspace: Workspace, state: State, options: PlanOptions, survey: SurveyOptions
) -> tuple[WeightsSurveyResult, MirrorSurveyResult]:
    weights = WeightsSurveyResult()
    if not options.destroy:
        has_weights = bool(workspace.source_requests)
        among = planned_addresses(workspace.desired, state, options) if has_weights else ()
        weights = survey_weights(workspace, state, survey, among)
    mirror = weights.mirror
    skips_mirror = survey.offline and is_remote(workspace.mirror)
    if options.destroy and survey.refresh and not skips_mirror:
        mirror = survey_mirror(workspace, state)
    if not (survey.refresh and mirror.queried):
        mirror = MirrorSurveyResult(site=workspace.mirror_site())
    return weights, mirror


def _refresh_recorded(
    workspace: Workspace, state: State, survey: SurveyOptions
) -> tuple[
    dict[Address, Observation],
    dict[Address, tuple[CacheFacts, ...]],
    dict[Address, tuple[RunRecord, ...]],
]:
    """Observe recorded resources outside the mirror, caches, unrecorded runs."""
    if not survey.refresh:
        return {}, {}, {}
    visible = state
    if survey.offline:  # only what is on this machine
        clusters = {
            cluster.address.name
            for cluster in of_kind(state.resources, Kind.CLUSTER)
            if workspace.agents.shares_disk(cluster.provider)
        }
        local = {
            address: item
            for address, item in state.resources.items()
            if (address.name if address.kind is Kind.CLUSTER else item.attributes.get("cluster"))
            in (None, *clusters)
        }
        visible = replace(state, resources=local)
    observed = observe(workspace, visible, survey.parallelism)
    caches = survey_caches(workspace, visible, survey.parallelism)
    return observed, caches, unrecorded_runs(workspace, visible)


def refuse_stale(workspace: Workspace, saved: SavedPlan) -> Plan:
    """Return a saved plan without finished changes; StalePlan if stale or for another state."""
    from trainctl.plan.plan_file import remaining, staleness

    planned_url = saved.desired.state_url
    if planned_url and workspace.state_url.rstrip("/") != planned_url.rstrip("/"):
        raise StalePlan(
            f"the plan is for the state {planned_url}, not {workspace.state_url}",
            "Remove --state, --env and TRAINCTL_STATE, or plan again with them.",
            code="plan-for-another-state",
        )
    workspace.ledger.require_lineage(saved.lineage)
    state = workspace.ledger.state()
    rest = remaining(saved.plan, state)
    reasons = [*staleness(saved.plan, state)]
    for change in rest.changes:
        if change.address not in rest.code or change.action is Action.NOOP:
            continue
        code, planned = survey_directory(workspace, change.job_spec.code), rest.code[change.address]
        if isinstance(code, TrainctlError):
            reasons.append(f"{change.address}: {code.summary}")
        elif code.tree.digest != planned.digest:
            before = rest.code_files.get(planned.digest)
            names = f": {changed_files(before, code.blobs)}" if before is not None else ""
            reasons.append(f"{change.address}: its code has changed since the plan was made{names}")
    if reasons:
        raise StalePlan("the saved plan is stale", "\n".join([*reasons, "Plan again."]))
    return rest


def approved_plan(workspace: Workspace, plan: Plan, approved: str) -> Plan:
    """Return a new plan as the rest of the approved one, unless it is that one; StalePlan if it is neither."""
    from trainctl.ledger.history import plan_outcomes
    from trainctl.plan.plan_file import resumed

    if plan.digest != approved:
        entries = [*workspace.ledger.entries()]
        edits = plan_edits(entries, approved).addresses
        outcomes = plan_outcomes(entries, approved)
        plan = resumed(plan, approved, outcomes, workspace.ledger.known(), edits) or plan
    require_digest(plan, approved)
    return plan


def require_digest(plan: Plan, expected: str) -> None:
    """Raise StalePlan if the plan does not have the expected digest."""
    if plan.digest != expected:
        lines = ["Review this plan, then pass its digest to --expect. It does:"]
        lines += [f"  {line}" for line in summarize_changes(plan.changes)]
        raise StalePlan(
            f"plan digest is {plan.digest}, expected {expected}",
            "\n".join(lines),
            code="not-the-reviewed-plan",
        )


def observe(workspace: Workspace, state: State, parallelism: int) -> dict[Address, Observation]:
    """Observe all recorded resources except weights and those that exist only in the state."""
    kinds = handlers(workspace.services())

    def read(recorded: RecordedResource) -> Observation:
        try:
            return kinds[recorded.address.kind].read(recorded, state.resources.get)
        except NodeError as failure:
            return Observation(ResourceStatus.UNREACHABLE, detail=failure.summary)

    jobs, apart = of_kind(state.external, Kind.JOB), (Kind.JOB, Kind.WEIGHTS)
    others = [item for item in state.external.values() if item.address.kind not in apart]
    control = RunControl(workspace.agents, state.resources.get)
    with BackgroundCall(observe_jobs, control, jobs) as runs:
        observed = each(read, others, parallelism)
        addresses = (other.address for other in others)
        return dict(zip(addresses, observed, strict=True)) | runs.result()


def observe_mirrored(state: State, mirror: MirrorSurveyResult) -> dict[Address, Observation]:
    """Observe recorded weights by a survey of the mirror."""
    observed: dict[Address, Observation] = {}
    for weights in of_kind(state.external, Kind.WEIGHTS):
        address = weights.address
        if mirror.problem is not None:
            detail = mirror.problem.summary
            observed[address] = Observation(ResourceStatus.UNREACHABLE, detail=detail)
            continue
        recorded = mirror.site and mirror.site.of(weights.outputs)
        moved = (
            recorded if recorded and mirror.site and mirror.site.differs_from(recorded) else None
        )
        # A directory that isn't here is on another machine, where the same project is applied.
        if moved and is_present(moved.url):
            observed[address] = Observation(ResourceStatus.PRESENT, other_mirror=str(moved))
        elif mirror.queried and weights.outputs.get("listing") in mirror.store.listings:
            observed[address] = Observation(ResourceStatus.PRESENT)
        elif mirror.queried:
            detail = f"the mirror was {moved}" if moved else ""
            observed[address] = Observation(ResourceStatus.MISSING, detail=detail)
    return observed


_PLACE = ("url", "endpoint_url", "secret", "prefix")


def planned_edits(workspace: Workspace, state: State, options: PlanOptions) -> StateEdits:
    """Return what the manifest renames and imports and the state doesn't have yet.

    Raises StateError if both names of a resource are in the state, NodeError if a run can't be read.
    """
    if options.destroy or options.refresh_only or not options.edits_state:
        return NO_EDITS
    desired = workspace.desired
    names = renames(state, desired.moves.renamed.items(), desired.resources)
    imports = [
        adopt_run(workspace, state, job, *text.rsplit("/", 1))
        for job, text in desired.moves.imported.items()
        if job not in state.resources and job not in names.values()
    ]
    return StateEdits(names, tuple(imports))


def adopt_run(
    workspace: Workspace, state: State, job: Address, node_id: str, run: str
) -> RecordedResource:
    """Return the record of a declared job with an existing run; NodeError if it can't be read."""
    desired = workspace.desired.resources[job]
    cluster = Address(Kind.CLUSTER, node_id.partition("/")[0])
    if cluster not in state.resources:
        raise StateError(
            f"{job} can't be imported: {cluster} is not in the state",
            f"Import it first: trainctl import {cluster}.",
            address=str(job),
            code="not-in-state",
        )
    control = RunControl(workspace.agents, state.resources.get)
    found = control.find_run(node_id, run)
    attributes = found["run_inputs"]["attributes"]
    record = RunRecord(
        run_id(found["key"]),
        found["number"],
        found["key"],
        found["generation"],
        ranks=tuple(
            RankRecord(rank, node, RunStatus.CREATED) for rank, node in enumerate(found["nodes"])
        ),
        created_at=found["created_at"],
        code=(attributes.get("code") or {}).get("digest"),
        store={name: found["store"].get(name) for name in _PLACE},
        max_duration_seconds=JobSpec.from_attributes(attributes).max_duration_seconds,
    )
    origin = {} if found["address"] == str(job) else {ORIGIN: found["address"]}
    return RecordedResource(
        job,
        desired.provider,
        attributes,
        {**origin, "runs": [control.status(record).to_json()]},
        desired.depends_on,
        desired.lifecycle,
        key=record.key,
    )
