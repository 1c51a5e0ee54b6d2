"""Following runs to their end; holds nothing, so that who has seen enough may leave."""

from __future__ import annotations

from collections.abc import Iterable

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.result import Result
from trainctl.errors import Interrupted, NodeUnreachable, PartlyDone
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.runs import Run, find_run, refresh_all
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.resources.run_control import runs_of

POLL_SECONDS = 0.5
"""How often a followed run is looked at."""


def follow(
    workspace: Workspace, addresses: Iterable[Address], emit: Emit, interrupt: Interrupt
) -> list[Run]:
    """Watch the newest runs of these jobs until each has ended or the user has had enough."""
    interrupt.only_watching()
    runs = {address: find_run(workspace.ledger.state(), address) for address in addresses}
    for run in runs.values():
        if not run.record.status.live:
            emit(run_event(run))
    while any(run.record.status.live for run in runs.values()):
        if interrupt.stopping.wait(POLL_SECONDS):
            break
        now = _look_again(workspace, list(runs.values()), emit)
        runs = dict(zip(runs, now, strict=True))
    for address, run in runs.items():
        if run.record.status.live:
            said = f"run {run.record.number} goes on without being followed"
            emit(Event(EventType.DIAGNOSTIC, said, address))
    return list(runs.values())


def _look_again(workspace: Workspace, runs: list[Run], emit: Emit) -> list[Run]:
    seen = refresh_all(workspace, runs)
    for run, (now, problem) in zip(runs, seen, strict=True):
        said, address = run_event(now), now.job.address
        if problem is not None and not isinstance(problem, NodeUnreachable):
            raise problem
        if problem is not None:  # the run goes on meanwhile, and may be seen again the next time
            data = {"phase": problem.summary}
            emit(Event(EventType.STEP_PROGRESS, problem.summary, address, data))
        elif now.record.status is not run.record.status:
            emit(said)
        elif now.record.status.live:
            emit(Event(EventType.STEP_PROGRESS, said.message, address, {"phase": said.message}))
    return [now for now, _ in seen]


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


def run_event(run: Run) -> Event:
    """What there is to say of a run."""
    record = run.record
    said = record.error or record.waiting
    detail = f": {said}" if said else ""
    data = {
        "run": record.id,
        "status": record.status.value,
        "exit_code": record.exit_code,
    }
    return Event(
        EventType.RUN_STATUS,
        f"run {record.number} ({record.id}) {record.status.words}{detail}",
        run.job.address,
        data,
    )


def exit_code(result: Result, followed: Iterable[Run]) -> int:
    """Of an apply that followed its runs: 12 as well if one did not complete, 130 if it was not followed to its end."""
    statuses = {run.record.status for run in followed}
    if result.exit_code == 0 and any(status.live for status in statuses):
        return Interrupted.exit_code
    if result.exit_code == 0 and statuses - {RunStatus.COMPLETED}:
        return PartlyDone.exit_code
    return result.exit_code
