"""Runs that an apply has begun and not recorded, as it is still at work or was interrupted: the state with them in it."""

from __future__ import annotations

from dataclasses import replace

from trainctl.errors import Busy, NodeUnreachable
from trainctl.ledger.fold import merge_outputs
from trainctl.ledger.leases import is_dead
from trainctl.ledger.state import Intent, Recorded, State
from trainctl.model.address import Address
from trainctl.model.reports import Beginner
from trainctl.model.run import RunRecord, RunStatus, run_id
from trainctl.operations.workspace import Workspace
from trainctl.resources.begun import Begun, attempts_of, begun
from trainctl.resources.run_control import runs_of


def begun_runs(workspace: Workspace, state: State) -> dict[Address, tuple[RunRecord, ...]]:
    """Of each job the runs that attempts have begun, as their nodes tell them, the newest last."""
    found: dict[Address, tuple[RunRecord, ...]] = {}
    for one in _look(workspace, state):
        if one.run is not None and one.counts:
            job = one.attempt.address
            found[job] = (*found.get(job, ()), one.run)
    return found


def with_begun(workspace: Workspace) -> State:
    """The state with what attempts have begun as the newest runs of their jobs, as if that was recorded: what people ask about.

    Nodes are asked only where something is open. A run that nobody knows yet is among them, without ranks, as long as somebody may
    be about to start it.
    """
    state = workspace.ledger.state()
    jobs = dict(state.resources)
    for one in _look(workspace, state):
        job = one.attempt.address
        known = jobs.get(job) or state.remembered(job)
        run = one.run if one.counts else _expected(one, state, known)
        if run is not None:
            jobs[job] = _with(known, one.attempt, run)
    return replace(state, resources=jobs)


def beginner(state: State, job: Address, key: str) -> Beginner | None:
    """Who begins, or began, a run that nobody has recorded; None of a recorded one."""
    attempt = next((one for one in state.attempts(job) if one.key == key), None)
    if attempt is None:
        return None
    return Beginner(attempt.holder.who, attempt.time, _is_over(state, attempt))


def is_unrecorded(state: State, job: Address, key: str) -> bool:
    """Whether a run is known only as that of an attempt: what is seen of it is for the apply to record that ends the attempt."""
    return any(one.key == key for one in state.attempts(job))


def not_there(state: State, job: Address, run: RunRecord) -> Busy | NodeUnreachable:
    """What is said to whoever wants to do something with a run that no node that answers knows of."""
    begins = beginner(state, job, run.key)
    if begins is not None and begins.interrupted:
        return NodeUnreachable(
            f"nobody can tell whether run {run.number} was started",
            "Its apply was interrupted, and of its nodes some can't be reached: trainctl nodes.",
            address=str(job),
        )
    before = [one for one in runs_of(state.remembered(job)) if one.status.live]
    still = (
        f" Run {before[-1].number} goes on until then: trainctl stop {job.typed} --run {before[-1].number}."
        if before
        else ""
    )
    return Busy(
        f"an apply is about to start run {run.number}, and no node knows of it yet",
        f"See trainctl status {job.typed}. Stop that apply, or try again once the run is there.{still}",
        address=str(job),
    )


def _look(workspace: Workspace, state: State) -> tuple[Begun, ...]:
    attempts = attempts_of(state)
    if not attempts:
        return ()
    return begun(workspace.agents, state.resources.get, attempts, workspace.checkpoints.place)


def _expected(one: Begun, state: State, known: Recorded | None) -> RunRecord | None:
    """The run of an attempt that may be about to start it, or has started it where nobody can ask."""
    attempt, number = one.attempt, len(runs_of(known)) + 1
    if attempt != state.open_intents.get(attempt.address):
        return None
    if _is_over(state, attempt) and one.silent is None:
        return None
    return RunRecord(
        run_id(attempt.key),
        number,
        attempt.key,
        status=RunStatus.DEPLOYING,
        created_at=attempt.time,
    )


def _is_over(state: State, attempt: Intent) -> bool:
    """Whether nobody is at it any more, as far as can be told here."""
    return attempt != state.open_intents.get(attempt.address) or bool(is_dead(attempt.holder))


def _with(known: Recorded | None, attempt: Intent, run: RunRecord) -> Recorded:
    """The job's record as it would be with the attempt's run: that of its newest run."""
    outputs = merge_outputs(known.outputs if known else {}, {"run": run.to_json()})
    return Recorded(
        attempt.address, attempt.provider, attempt.attributes, outputs, attempt.depends_on
    )
