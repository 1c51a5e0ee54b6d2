"""Find runs in the state, add unrecorded runs, and refresh them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.errors import LockHeld, NodeError, NodeUnreachable, TrainctlError, UsageError
from trainctl.ledger.leases import is_dead
from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import nearest
from trainctl.model.run import RunRecord, RunStatus, run_id
from trainctl.operations.workspace import Workspace
from trainctl.resources.runs.previous_runs import (
    AttemptedRun,
    find_attempted_runs,
    unrecorded_attempts,
)
from trainctl.resources.runs.run_control import ObservedRun, RunControl, runs_of

if TYPE_CHECKING:
    from trainctl.model.reports import PendingApply


def unrecorded_runs(workspace: Workspace, state: State) -> dict[Address, tuple[RunRecord, ...]]:
    """Return the unrecorded runs of each job, the newest last."""
    runs: dict[Address, tuple[RunRecord, ...]] = {}
    for attempted in _find_attempted_runs(workspace, state):
        if attempted.run is not None and attempted.did_start:
            job = attempted.attempt.address
            runs[job] = (*runs.get(job, ()), attempted.run)
    return runs


def with_unrecorded_runs(workspace: Workspace) -> State:
    """Return the state with unrecorded runs added to their jobs.

    Queries nodes only if attempts are open. A run that is starting and on no node yet has no ranks.
    """
    state = workspace.ledger.state()
    jobs = dict(state.resources)
    for attempted in _find_attempted_runs(workspace, state):
        job = attempted.attempt.address
        known = jobs.get(job) or state.find_record(job)
        run = attempted.run if attempted.did_start else _expected_run(attempted, state, known)
        if run is not None:
            jobs[job] = _with_run(known, attempted.attempt, run)
    return replace(state, resources=jobs)


def find_starting_apply(state: State, job: Address, key: str) -> PendingApply | None:
    """Return the apply that starts an unrecorded run; None if recorded."""
    from trainctl.model.reports import PendingApply

    attempt = next((attempt for attempt in state.attempts(job) if attempt.key == key), None)
    if attempt is None:
        return None
    return PendingApply(attempt.holder.actor, attempt.time, _is_over(state, attempt))


def unknown_run_error(state: State, job: Address, run: RunRecord) -> LockHeld | NodeUnreachable:
    """Return the error for a run that no reachable node knows."""
    apply = find_starting_apply(state, job, run.key)
    if apply is not None and apply.interrupted:
        return NodeUnreachable(
            f"it is unknown whether run {run.number} was started",
            "Its apply was interrupted, and some of its nodes are unreachable. Check them: trainctl nodes.",
            address=str(job),
        )
    detail = f"Check trainctl status {job.shell_quoted}. Stop that apply, or try again when the run has started."
    live = [record.number for record in runs_of(state.find_record(job)) if record.status.live]
    if live:
        stop = f"trainctl stop {job.shell_quoted} --run {live[-1]}"
        detail += f" Run {live[-1]} continues until then. To stop it: {stop}."
    return LockHeld(
        f"an apply is starting run {run.number}, and no node has it yet", detail, address=str(job)
    )


def _find_attempted_runs(workspace: Workspace, state: State) -> tuple[AttemptedRun, ...]:
    attempts = unrecorded_attempts(state)
    if not attempts:
        return ()
    return find_attempted_runs(
        workspace.agents,
        state.resources.get,
        attempts,
        partial(workspace.checkpoints.place, state.resources.get),
    )


def _expected_run(
    attempted: AttemptedRun, state: State, known: RecordedResource | None
) -> RunRecord | None:
    """Return the run of an attempt that is starting, or may have started."""
    attempt = attempted.attempt
    number = max((run.number for run in runs_of(known)), default=0) + 1
    if attempt != state.open_intents.get(attempt.address):
        return None
    if _is_over(state, attempt) and attempted.node_error is None:
        return None
    return RunRecord(
        run_id(attempt.key),
        number,
        attempt.key,
        status=RunStatus.DEPLOYING,
        created_at=attempt.time,
    )


def _is_over(state: State, attempt: Intent) -> bool:
    """Whether the apply of an attempt has ended."""
    return attempt != state.open_intents.get(attempt.address) or bool(is_dead(attempt.holder))


def _with_run(known: RecordedResource | None, attempt: Intent, run: RunRecord) -> RecordedResource:
    """Return the job's record with the attempt's run added."""
    outputs = merge_outputs(known.outputs if known else {}, {"run": run.to_json()})
    return RecordedResource(
        attempt.address, attempt.provider, attempt.attributes, outputs, attempt.depends_on
    )


@dataclass(frozen=True, slots=True)
class JobRun:
    """A run of a recorded job, and the state that also has its nodes, None for the current one."""

    job: RecordedResource
    record: RunRecord
    state: State | None = None

    @property
    def matrix(self) -> tuple[tuple[str, str], ...]:
        """Names and values of the matrix, as written."""
        return tuple((item.name, item.value) for item in self.job.job_spec.matrix or ())

    @property
    def project(self) -> str:
        """The job's project."""
        return self.job.job_spec.project


def job_address(text: str) -> Address:
    """Parse a job address, ``job.sft`` or just its name."""
    try:
        address = Address.read(text.removesuffix("[*]"))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if address.kind is not Kind.JOB:
        raise UsageError(
            f"{address} is not a job", "Name a job: only jobs can run.", code="not-a-job"
        )
    return address


def find_run(state: State, address: Address, run: str | None = None) -> JobRun:
    """Find a run by id or number, by default the newest."""
    job = _find_job(state, address)
    runs = runs_of(job)
    if not runs:
        raise UsageError(
            f"{address} has not run yet", "To run it, apply: trainctl apply.", code="run-not-found"
        )
    if run is None:
        return JobRun(job, runs[-1], state)
    for record in runs:
        if run in (record.id, str(record.number)):
            return JobRun(job, record, state)
    raise UsageError(
        f"{address} has no run {run}",
        f"Runs: {', '.join(f'{r.number} ({r.id})' for r in runs)}.",
        code="run-not-found",
    )


def named_run(workspace: Workspace, address: str, run: str | None = None) -> JobRun:
    """Find a run by the words of a command; runs that are not recorded yet are found, too."""
    return find_run(with_unrecorded_runs(workspace), job_address(address), run)


def _find_job(state: State, address: Address) -> RecordedResource:
    """Find a recorded job, or a job removed from the manifest."""
    for jobs in (state.resources, state.forgotten):
        if address in jobs:
            return jobs[address]
        matrix = jobs_of_matrix(jobs, address)
        if len(matrix) == 1:
            return jobs[matrix[0]]
        if matrix:
            hint = f"To list them: trainctl status {address}"
            if jobs is not state.resources:
                hint = f"Jobs: {', '.join(map(str, matrix))}."
            raise UsageError(
                f"{address} has {len(matrix)} jobs",
                f"Use the name of a single job, for example {matrix[0].shell_quoted}. {hint}",
            )
    known = {*state.resources, *state.forgotten}
    matrix = jobs_of_matrix(known, address.group)
    groups = sorted({resource.group for resource in known if resource.kind is Kind.JOB})
    near = nearest(address.name, {job.name for job in groups})
    hint = f"In the state: {', '.join(map(str, groups)) or 'no job'}."
    if matrix:
        hint = f"Jobs of {address.group}: {', '.join(map(str, matrix))}."
    elif near is not None:
        hint = f"Did you mean job.{near}?"
    raise UsageError(f"{address} is not in the state", hint, code="not-in-state")


def check_rank(run: JobRun, rank: int | None) -> None:
    """Raise UsageError if the run has ranks, but not this one."""
    ranks = [record.rank for record in run.record.ranks]
    if rank is not None and ranks and rank not in ranks:
        raise UsageError(
            f"run {run.record.id} has no rank {rank}", f"The run has {len(ranks)}, counted from 0."
        )


def jobs_of_matrix(jobs: Iterable[Address], address: Address) -> list[Address]:
    """Return those of the jobs that a matrix has; empty for a single job."""
    if address.key is not None:
        return []
    return sorted(job for job in jobs if job.key is not None and job.group == address)


def newest_runs(state: State, address: Address | None = None) -> Iterator[JobRun]:
    """Yield the newest run of every job, or of the jobs of one matrix."""
    jobs = sorted(state.resources)
    for job in jobs_of_matrix(jobs, address) if address else jobs:
        if job.kind is Kind.JOB and (runs := state.resources[job].outputs.get("runs")):
            yield JobRun(state.resources[job], RunRecord.from_json(runs[-1]))


def select_runs(state: State, address: Address | None, run: str | None = None) -> list[JobRun]:
    """Find a run, or without ``run`` the newest run of each job, or of each job of a matrix."""
    newest = [*newest_runs(state, address)] if run is None else []
    return newest or ([find_run(state, address, run)] if address else [])


def kept_state(workspace: Workspace) -> State:
    """Return destroyed jobs, whose checkpoints may have been kept, with all clusters there were."""
    from trainctl.ledger.history import removed_resources

    return removed_resources(workspace.ledger.entries())


def kept_runs(state: State, address: Address | None) -> list[JobRun]:
    """Return all runs of the jobs of ``kept_state``, optionally of one job or matrix."""
    return [
        JobRun(resource, record, state)
        for job, resource in sorted(state.resources.items())
        if job.kind is Kind.JOB and address in (None, job, job.group)
        for record in runs_of(resource)
        if record.reused_from is None
    ]


def run_control(workspace: Workspace, state: State | None = None) -> RunControl:
    """Return the control of recorded runs."""
    state = state or workspace.ledger.state()
    return RunControl(workspace.agents, state.resources.get)


def refresh_runs(
    workspace: Workspace, runs: Sequence[JobRun]
) -> list[tuple[JobRun, NodeError | None]]:
    """Query runs, each node once, and record all changes in one entry.

    If a node is unreachable, its error is returned with the run, whose other ranks are updated.
    Unrecorded runs are not recorded, nor anything by a read-only workspace.
    """
    live = [run.record for run in runs if run.record.status.live]
    observed = run_control(workspace).statuses(live) if live else {}
    refreshed: list[tuple[JobRun, NodeError | None]] = []
    changed: dict[Address, dict[str, Any]] = {}
    for run in runs:
        record, problem = observed.get(run.record.key, ObservedRun(run.record, None))
        refreshed.append((JobRun(run.job, record), problem))
        if problem is None and record != run.record and _is_recorded(workspace, run):
            changed[run.job.address] = {"run": record.to_json()}
    if changed and not workspace.settings.read_only:
        workspace.ledger.observe_many(changed)
        keep_points(workspace, [run for run, _ in refreshed if run.job.address in changed])
    return refreshed


def keep_points(workspace: Workspace, runs: Iterable[JobRun]) -> None:
    """Keep the points of those runs that have ended and reported any."""
    ended = [
        run for run in runs if not run.record.status.live and run.record.reported.get("results")
    ]
    if ended:
        from trainctl.operations.runs.points import read_points

        with suppress(TrainctlError):
            read_points(workspace, ended)


def record_run(workspace: Workspace, job: RecordedResource, record: RunRecord) -> None:
    """Record an observed run, unless the apply that starts it will."""
    if _is_recorded(workspace, JobRun(job, record)):
        workspace.ledger.observe(job.address, {"run": record.to_json()})
        keep_points(workspace, [JobRun(job, record)])


def _is_recorded(workspace: Workspace, run: JobRun) -> bool:
    attempts = workspace.ledger.known().attempts(run.job.address)
    return all(attempt.key != run.record.key for attempt in attempts)
