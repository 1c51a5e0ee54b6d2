"""Plans of runs that start from earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainctl.base.checkpoints.ranking import newest_checkpoint
from trainctl.base.parallel import each
from trainctl.desired.values import DesiredState
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.reports import Checkpoint
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.jobs.checkpoints import checkpoint_from, complete_rows
from trainctl.operations.jobs.runs import JobRun, find_run, run_control, with_unrecorded_runs
from trainctl.operations.plan import observe, observe_mirrored
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.survey.mirror import survey_mirror
from trainctl.operations.workspace import Workspace
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanInputs, PlanOptions, RerunRequest
from trainctl.resources.previous_runs import RERUN, RESUME, load_previous_run, require_inputs
from trainctl.resources.run_control import runs_of

_AT_ONCE = 8
"""How many jobs are looked at at the same time."""


def resume_starts(
    workspace: Workspace, addresses: Iterable[Address]
) -> dict[Address, RerunRequest]:
    """For each job, that its new run resumes from its newest complete checkpoint; TrainctlError where there is none.

    The name of a job that has a matrix stands for all of its jobs.
    """
    state = with_unrecorded_runs(workspace)

    def start(address: Address) -> RerunRequest:
        run = find_run(state, address)
        newest = find_newest_checkpoint(workspace, run.job)
        note = f"resumes from {newest.name} of run {newest.run}"
        if run.record.status.live:
            note += ", or from a newer checkpoint saved before the run stops"
        return RerunRequest({RESUME: "latest"}, note)

    jobs = [one for address in addresses for one in _expand_matrix(workspace, state, address)]
    return dict(zip(jobs, each(start, jobs, _AT_ONCE), strict=True))


def _expand_matrix(workspace: Workspace, state: State, address: Address) -> list[Address]:
    """The declared jobs of a matrix, where the address is what they have in common; else itself."""
    if address.key is not None or address in state.resources:
        return [address]
    found = [
        resource
        for resource in workspace.desired.resources
        if resource.key and resource.group == address
    ]
    return found or [address]


def find_newest_checkpoint(workspace: Workspace, job: RecordedResource) -> Checkpoint:
    """The newest complete checkpoint of all of a job's runs, as a node will choose it; TrainctlError names the runs that have none."""
    runs = runs_of(job)
    begun = {record.id: JobRun(job, record) for record in runs if record.started_at is not None}
    found = newest_checkpoint({name: complete_rows(workspace, run) for name, run in begun.items()})
    if found is None:
        looked = ", ".join(f"{run.number} ({run.id})" for run in runs)
        raise TrainctlError(
            f"{job.address} has no complete checkpoint to resume from",
            f"Checked runs: {looked}. To start from the beginning, remove --resume.",
            code="checkpoint-not-found",
        )
    name, ranks = found
    return checkpoint_from(ranks[0], begun[name])


def plan_rerun(workspace: Workspace, address: Address, run: str, look: SurveyOptions) -> Plan:
    """Plan one new run that repeats an earlier one; today's manifest, code and sources don't count."""
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
            **observe(workspace, state, look.parallelism),
            **observe_mirrored(state, survey_mirror(workspace, state)),
        },
        options=PlanOptions(targets=(address,), run=(address,)),
        policies=workspace.trust.policies,
        starts={address: RerunRequest({RERUN: old.record.id}, note, as_recorded=True)},
    )
    # What is delivered are the weights of then: nothing of these tables, which speak of today's.
    return replace(make_plan(inputs), weights=(), deliveries=())


def _desired_from_state(workspace: Workspace, state: State, run: JobRun) -> DesiredState:
    """The job and what it needs, as the state has them: nothing of these is to change."""
    resources: dict[Address, DesiredResource] = {}
    waiting = [run.job]  # which may be one that was forgotten
    while waiting:
        recorded = waiting.pop()
        if recorded.address in resources:
            continue
        resources[recorded.address] = DesiredResource(
            recorded.address,
            recorded.provider,
            recorded.attributes,
            recorded.depends_on,
            recorded.lifecycle,
        )
        waiting += filter(None, map(state.resources.get, recorded.depends_on))
    return replace(workspace.desired, resources=resources, warnings=())
