"""Following what an apply started to its end, and carrying on what it had to leave until other runs have ended."""

from __future__ import annotations

from collections.abc import Iterable

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import Result
from trainctl.errors import Interrupted, PartlyDone, TrainctlError
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.events import Emit, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.continuing import Continuation
from trainctl.operations.following import follow
from trainctl.operations.runs import Run
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.resources.run_control import runs_of


def follow_apply(
    workspace: Workspace,
    plan: Plan,
    result: Result,
    continuation: Continuation,
    emit: Emit,
    interrupt: Interrupt,
) -> list[Run]:
    """Watch an apply's runs; whenever one has ended, what waited is carried on, which the result takes in."""

    def go_on() -> list[Address]:
        started: list[Address] = []
        while waiting := {*result.deferred, *result.skipped}:
            try:
                later = continuation.carry_on(workspace, waiting)
            except TrainctlError as error:  # runs are followed all the same
                continuation.say(None, error.summary, EventType.DIAGNOSTIC)
                break
            if later is not None:
                result.carried_on(later)
                started += unfinished(workspace, plan, later)
            if later is None or not later.done:
                break
        return started

    return follow(workspace, unfinished(workspace, plan, result), emit, interrupt, go_on)


def unfinished(workspace: Workspace, plan: Plan, result: Result) -> list[Address]:
    """The jobs of a plan to wait for: those that got a new run, and those whose run was live already."""
    state = workspace.ledger.state()
    new = {
        change.address for change in result.done if change.action in (Action.CREATE, Action.REPLACE)
    }
    found = []
    for change in plan.changes:
        runs = (
            runs_of(state.resources.get(change.address)) if change.address.kind is Kind.JOB else ()
        )
        if runs and (change.address in new or runs[-1].status.live):
            found.append(change.address)
    return found


def started(workspace: Workspace, result: Result) -> list[Address]:
    """The jobs that an apply gave a run which goes on after it."""
    state = workspace.ledger.state()
    jobs = [one.address for one in result.done if one.action in (Action.CREATE, Action.REPLACE)]
    runs = {address: runs_of(state.resources.get(address)) for address in jobs}
    return [address for address, found in runs.items() if found and found[-1].status.live]


def exit_code(result: Result, followed: Iterable[Run]) -> int:
    """Of an apply that followed its runs: 12 as well if one did not complete, 130 if it was not followed to its end."""
    statuses = {run.record.status for run in followed}
    if result.exit_code == 0 and any(status.live for status in statuses):
        return Interrupted.exit_code
    if result.exit_code == 0 and statuses - {RunStatus.COMPLETED}:
        return PartlyDone.exit_code
    return result.exit_code
