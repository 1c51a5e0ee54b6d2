"""Plan runs that repeat or resume an earlier run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainctl.base.checkpoints.layout import newest_checkpoint
from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.desired.values import DesiredState
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import ActionReason
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.run import RunRecord
from trainctl.model.specs.location import CheckpointRanking
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.plan import create_plan, observe, observe_mirrored
from trainctl.operations.policies import with_policies
from trainctl.operations.runs.lookup import JobRun, find_run, run_control, with_unrecorded_runs
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.survey.weights import survey_mirror
from trainctl.operations.workspace import Workspace
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanInputs, PlanOptions, RerunRequest
from trainctl.resources.runs.previous_runs import RERUN, RESUME, load_previous_run, require_inputs
from trainctl.resources.runs.run_control import runs_of

_AT_ONCE = 8
"""How many jobs are queried at the same time."""


def resume_starts(
    workspace: Workspace,
    addresses: Iterable[Address],
    *,
    lost: bool = False,
    by: str | None = None,
) -> dict[Address, RerunRequest]:
    """Return the starts of jobs from their newest complete checkpoints, or from the best ``by`` a metric.

    The name of a matrix means all of its jobs. ``lost``: the newest runs have ended, even if recorded as live.
    TrainctlError if a job has no checkpoint.
    """
    state = with_unrecorded_runs(workspace)

    def start(address: Address) -> RerunRequest:
        run = find_run(state, address)
        if by is not None:
            from trainctl.operations.runs.results import find_best  # slow to load

            best = find_best(workspace, [run], CheckpointRanking.read(by))
            return RerunRequest({RESUME: best.pin}, f"resumes from {best.text}")
        note = f"resumes from {_newest_checkpoint(workspace, run.job)}"
        if run.record.status.live and not lost:
            note += ", or from a newer checkpoint saved before the run stops"
        return RerunRequest({RESUME: "latest"}, note)

    jobs: list[Address] = []
    for address in addresses:
        declared: list[Address] = []
        if address.key is None and address not in state.resources:
            resources = workspace.desired.resources
            declared = [job for job in resources if job.key and job.group == address]
        jobs += declared or [address]
    return dict(zip(jobs, each(start, jobs, _AT_ONCE), strict=True))


def plan_with_resumes(
    workspace: Workspace,
    options: PlanOptions,
    survey: SurveyOptions,
    starts: Mapping[Address, RerunRequest],
) -> Plan:
    """Create a plan in which runs whose machine was taken back resume from their newest checkpoints."""
    plan = create_plan(workspace, options, survey, starts)
    resumed: dict[Address, RerunRequest] = {}
    warnings: list[Diagnostic] = []
    for change in plan.acting if survey.refresh and not survey.offline else ():
        runs = change.outputs.get("runs")
        if change.reason is not ActionReason.RUN_LOST or not runs or change.address in starts:
            continue
        run = RunRecord.from_json(runs[-1])
        if run.interrupted or run.status.live:  # its machine was taken back, or vanished
            try:
                resumed |= resume_starts(workspace, [change.address], lost=True)
            except TrainctlError as error:
                if error.code != "checkpoint-not-found":
                    summary = f"the new run doesn't resume: {error.summary}"
                    address = str(change.address)
                    warnings.append(
                        warning(summary, error.detail, code=error.code, address=address)
                    )
    if resumed:
        plan = create_plan(workspace, options, survey, {**starts, **resumed})
    return replace(plan, diagnostics=(*plan.diagnostics, *warnings))


def _newest_checkpoint(workspace: Workspace, job: RecordedResource) -> str:
    """Name the newest complete checkpoint of all of a job's runs: ``checkpoint-40 of run 3k7a9x2``."""
    from trainctl.operations.runs.checkpoints import checkpoints_of  # slow to load

    runs, known = runs_of(job), dict[str, list[dict[str, Any]]]()
    for run in runs:
        if run.started_at is not None:
            rows = checkpoints_of(workspace, JobRun(job, run)).rows()
            known[run.id] = [row for row in rows if row["state"] in ("complete", "unfinished")]
    newest = newest_checkpoint(known)
    if newest is None:
        checked = ", ".join(f"{run.number} ({run.id})" for run in runs)
        raise TrainctlError(
            f"{job.address} has no complete checkpoint to resume from",
            f"Checked runs: {checked}. To start from the beginning, remove --resume.",
            code="checkpoint-not-found",
        )
    return f"{newest[1][0]['name']} of run {newest[0]}"


def plan_rerun(workspace: Workspace, address: Address, run: str, options: SurveyOptions) -> Plan:
    """Plan a run that repeats an earlier run with its recorded inputs."""
    state = workspace.ledger.state()
    old = find_run(state, address, run)
    previous_run = load_previous_run(run_control(workspace), workspace.mirror.store, old.record)
    require_inputs(previous_run, state.resources.get)
    commands = "; ".join(previous_run.job.runtime.start_commands)
    note = f"repeats run {old.record.number} ({old.record.id}): {commands}"
    inputs = PlanInputs(
        desired=_desired_from_state(workspace, state, old),
        state=state,
        observed={
            **observe(workspace, state, options.parallelism),
            **observe_mirrored(state, survey_mirror(workspace, state)),
        },
        options=PlanOptions(targets=(address,), run=(address,)),
        policies=workspace.trust.policies,
        starts={address: RerunRequest({RERUN: old.record.id}, note, as_recorded=True)},
    )
    # The tables show the manifest's current weights, but the run uses earlier versions.
    return with_policies(workspace, replace(make_plan(inputs), weights=(), deliveries=()))


def _desired_from_state(workspace: Workspace, state: State, run: JobRun) -> DesiredState:
    """Return the job and its dependencies as recorded, without changes."""
    resources: dict[Address, DesiredResource] = {}
    pending = [run.job]  # not necessarily in state.resources
    while pending:
        recorded = pending.pop()
        if recorded.address in resources:
            continue
        resources[recorded.address] = DesiredResource(
            recorded.address,
            recorded.provider,
            recorded.attributes,
            recorded.depends_on,
            recorded.lifecycle,
        )
        pending += filter(None, map(state.resources.get, recorded.depends_on))
    return replace(workspace.desired, resources=resources, warnings=())
