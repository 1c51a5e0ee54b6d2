"""Runs in the state, those that an apply has started and not recorded, and their refresh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainctl.errors import LockHeld, NodeError, NodeUnreachable, UsageError
from trainctl.ledger.leases import is_dead
from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.manifest.suggestions import nearest
from trainctl.model.address import Address, Kind
from trainctl.model.reports import PendingApply
from trainctl.model.run import RunRecord, RunStatus, run_id
from trainctl.operations.workspace import Workspace
from trainctl.resources.previous_runs import AttemptedRun, find_attempted_runs, unrecorded_attempts
from trainctl.resources.run_control import ObservedRun, RunControl, runs_of


def unrecorded_runs(workspace: Workspace, state: State) -> dict[Address, tuple[RunRecord, ...]]:
    """Of each job the runs that attempts have begun, as their nodes tell them, the newest last."""
    found: dict[Address, tuple[RunRecord, ...]] = {}
    for find_attempted_run in _find_attempted_runs(workspace, state):
        if find_attempted_run.run is not None and find_attempted_run.did_start:
            job = find_attempted_run.attempt.address
            found[job] = (*found.get(job, ()), find_attempted_run.run)
    return found


def with_unrecorded_runs(workspace: Workspace) -> State:
    """The state with what attempts have begun as the newest runs of their jobs, as if that was recorded: what people ask about.

    Nodes are asked only if something is open. A run that no node knows yet is among them, without ranks, as long as an apply may
    be about to start it.
    """
    state = workspace.ledger.state()
    jobs = dict(state.resources)
    for find_attempted_run in _find_attempted_runs(workspace, state):
        job = find_attempted_run.attempt.address
        known = jobs.get(job) or state.find_record(job)
        run = (
            find_attempted_run.run
            if find_attempted_run.did_start
            else _expected_run(find_attempted_run, state, known)
        )
        if run is not None:
            jobs[job] = _with_run(known, find_attempted_run.attempt, run)
    return replace(state, resources=jobs)


def find_starting_apply(state: State, job: Address, key: str) -> PendingApply | None:
    """The apply that begins, or began, an unrecorded run; None of a recorded one."""
    attempt = next((one for one in state.attempts(job) if one.key == key), None)
    if attempt is None:
        return None
    return PendingApply(attempt.holder.actor, attempt.time, _is_over(state, attempt))


def is_unrecorded(state: State, job: Address, key: str) -> bool:
    """Whether a run is known only as that of an attempt, which the apply that ends it will record."""
    return any(attempt.key == key for attempt in state.attempts(job))


def unknown_run_error(state: State, job: Address, run: RunRecord) -> LockHeld | NodeUnreachable:
    """The error for a run that no reachable node knows."""
    begins = find_starting_apply(state, job, run.key)
    if begins is not None and begins.interrupted:
        return NodeUnreachable(
            f"it is unknown whether run {run.number} was started",
            "Its apply was interrupted, and some of its nodes are unreachable. Check them: trainctl nodes.",
            address=str(job),
        )
    before = [one for one in runs_of(state.find_record(job)) if one.status.live]
    still = (
        f" Run {before[-1].number} continues until then. To stop it: trainctl stop {job.shell_quoted} --run {before[-1].number}."
        if before
        else ""
    )
    return LockHeld(
        f"an apply is starting run {run.number}, and no node has it yet",
        f"Check trainctl status {job.shell_quoted}. Stop that apply, or try again when the run has started.{still}",
        address=str(job),
    )


def _find_attempted_runs(workspace: Workspace, state: State) -> tuple[AttemptedRun, ...]:
    attempts = unrecorded_attempts(state)
    if not attempts:
        return ()
    return find_attempted_runs(
        workspace.agents, state.resources.get, attempts, workspace.checkpoints.place
    )


def _expected_run(
    one: AttemptedRun, state: State, known: RecordedResource | None
) -> RunRecord | None:
    """The run of an attempt that may be about to start it, or has started it on an unreachable node."""
    attempt, number = one.attempt, len(runs_of(known)) + 1
    if attempt != state.open_intents.get(attempt.address):
        return None
    if _is_over(state, attempt) and one.node_error is None:
        return None
    return RunRecord(
        run_id(attempt.key),
        number,
        attempt.key,
        status=RunStatus.DEPLOYING,
        created_at=attempt.time,
    )


def _is_over(state: State, attempt: Intent) -> bool:
    """Whether its apply is known to be over."""
    return attempt != state.open_intents.get(attempt.address) or bool(is_dead(attempt.holder))


def _with_run(known: RecordedResource | None, attempt: Intent, run: RunRecord) -> RecordedResource:
    """The job's record as it would be with the attempt's run: that of its newest run."""
    outputs = merge_outputs(known.outputs if known else {}, {"run": run.to_json()})
    return RecordedResource(
        attempt.address, attempt.provider, attempt.attributes, outputs, attempt.depends_on
    )


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a recorded job."""

    job: RecordedResource
    record: RunRecord

    @property
    def project(self) -> str:
        """The project it is filed under."""
        return self.job.job_spec.project


def job_address(text: str) -> Address:
    """A job's address as users type it: ``job.sft``, or its name alone."""
    try:
        address = Address.read(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if address.kind is not Kind.JOB:
        raise UsageError(
            f"{address} is not a job", "Name a job: only jobs can run.", code="not-a-job"
        )
    return address


def find_run(state: State, address: Address, run: str | None = None) -> JobRun:
    """A run by id or number, the newest by default; UsageError says what there is."""
    job = _find_job(state, address)
    runs = runs_of(job)
    if not runs:
        raise UsageError(
            f"{address} has not run yet", "To run it, apply: trainctl apply.", code="run-not-found"
        )
    if run is None:
        return JobRun(job, runs[-1])
    for record in runs:
        if run in (record.id, str(record.number)):
            return JobRun(job, record)
    raise UsageError(
        f"{address} has no run {run}",
        f"Runs: {', '.join(f'{r.number} ({r.id})' for r in runs)}.",
        code="run-not-found",
    )


def _find_job(state: State, address: Address) -> RecordedResource:
    """The job that is meant: one that is recorded, else one that was forgotten."""
    for jobs in (state.resources, state.forgotten):
        if address in jobs:
            return jobs[address]
        many = _matrix_jobs(jobs, address)
        if len(many) == 1:
            return jobs[many[0]]
        if many:
            told = f"To list them: trainctl status {address}"
            there = told if jobs is state.resources else f"Jobs: {', '.join(map(str, many))}."
            raise UsageError(
                f"{address} has {len(many)} jobs",
                f"Use the name of a single job, for example {many[0].shell_quoted}. {there}",
            )
    raise UsageError(
        f"{address} is not in the state", _known_jobs(state, address), code="not-in-state"
    )


def _known_jobs(state: State, address: Address) -> str:
    """What was probably meant, or what there is; the jobs of a matrix by the name they have in common."""
    known = {*state.resources, *state.forgotten}
    of_it = _matrix_jobs(known, address.group)
    if of_it:
        return f"Jobs of {address.group}: {', '.join(map(str, of_it))}."
    jobs = sorted({one.group for one in known if one.kind is Kind.JOB})
    near = nearest(address.name, {job.name for job in jobs})
    if near is not None:
        return f"Did you mean job.{near}?"
    return f"In the state: {', '.join(map(str, jobs)) or 'no job'}."


def check_rank(run: JobRun, rank: int | None) -> None:
    """UsageError for a rank that the run has not; a run that never got nodes has none to compare with."""
    ranks = [one.rank for one in run.record.ranks]
    if rank is not None and ranks and rank not in ranks:
        counted = f"The run has {len(ranks)}, counted from 0."
        raise UsageError(f"run {run.record.id} has no rank {rank}", counted)


def jobs_of_matrix(state: State, address: Address) -> list[Address]:
    """The recorded jobs of a matrix, by the name they have in common; none if the address is of one job."""
    return _matrix_jobs(state.resources, address)


def _matrix_jobs(jobs: Iterable[Address], address: Address) -> list[Address]:
    if address.key is not None:
        return []
    return sorted(job for job in jobs if job.key is not None and job.group == address)


def newest_runs(state: State, address: Address | None = None) -> Iterator[JobRun]:
    """The newest run of every job that has one, or of those of one matrix."""
    chosen = jobs_of_matrix(state, address) if address else sorted(state.resources)
    for each in chosen:
        if each.kind is Kind.JOB and (runs := runs_of(state.resources[each])):
            yield JobRun(state.resources[each], runs[-1])


def select_runs(state: State, address: Address, run: str | None = None) -> list[JobRun]:
    """As ``find_run``; where no run is named, what the jobs of a matrix have in common means the newest run of each."""
    many = list(newest_runs(state, address)) if run is None else []
    return many or [find_run(state, address, run)]


def run_control(workspace: Workspace) -> RunControl:
    """A way to ask nodes about runs."""
    state = workspace.ledger.state()
    return RunControl(workspace.agents, state.resources.get)


def refresh_run(workspace: Workspace, run: JobRun) -> JobRun:
    """The run as its nodes tell it now; what changed is appended to the state as observed."""
    now, problem = refresh_runs(workspace, [run])[0]
    if problem is not None:
        raise problem
    return now


def refresh_runs(
    workspace: Workspace, runs: Sequence[JobRun]
) -> list[tuple[JobRun, NodeError | None]]:
    """As ``refresh_run``, of many runs: each node is asked once, and one append holds what changed.

    A run of which some node could not be asked is as it was, but for the ranks of the others, with the reason beside it. What an
    apply has begun and not recorded yet is not appended.
    """
    live = [run.record for run in runs if run.record.status.live]
    told = run_control(workspace).statuses(live) if live else {}
    found: list[tuple[JobRun, NodeError | None]] = []
    changed: dict[Address, dict[str, Any]] = {}
    for run in runs:
        now, problem = told.get(run.record.key, ObservedRun(run.record, None))
        found.append((JobRun(run.job, now), problem))
        if problem is None and now != run.record and _is_recorded(workspace, run):
            changed[run.job.address] = {"run": now.to_json()}
    if changed:
        workspace.ledger.observe_many(changed)
    return found


def record_run(workspace: Workspace, job: RecordedResource, record: RunRecord) -> None:
    """Append what was seen of a run, unless the apply that began it has still to record it."""
    if _is_recorded(workspace, JobRun(job, record)):
        workspace.ledger.observe(job.address, {"run": record.to_json()})


def _is_recorded(workspace: Workspace, run: JobRun) -> bool:
    return not is_unrecorded(workspace.ledger.known(), run.job.address, run.record.key)
