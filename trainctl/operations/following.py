"""Follow runs to their end, and carry on what an apply had to leave until other runs have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.result import Result
from trainctl.errors import Interrupted, NodeUnreachable, PartlyDone, TrainctlError
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.continuing import Continuation
from trainctl.operations.runs import Run, find_run, refresh_all
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.resources.run_control import runs_of

POLL_SECONDS = 0.5
"""How often a followed run is looked at."""


def follow(
    workspace: Workspace,
    addresses: Iterable[Address],
    emit: Emit,
    interrupt: Interrupt,
    on_end: Callable[[], Iterable[Address]] = tuple,
) -> list[Run]:
    """Watch the newest runs of these jobs until each has ended or the user has had enough.

    ``on_end`` is called when one has ended, and names jobs to watch as well.
    """
    interrupt.only_watching()
    runs = {address: find_run(workspace.ledger.state(), address) for address in addresses}
    for run in runs.values():
        if not run.record.status.live:
            emit(run_event(run))
    while _live(runs):
        if interrupt.stopping.wait(POLL_SECONDS):
            break
        live = _live(runs)
        now = _look_again(workspace, list(runs.values()), emit)
        runs = dict(zip(runs, now, strict=True))
        if live - _live(runs):
            with interrupt.at_work():
                more = on_end()
            runs |= {address: find_run(workspace.ledger.state(), address) for address in more}
    for address, run in runs.items():
        if run.record.status.live:
            said = f"run {run.record.number} goes on without being followed"
            emit(Event(EventType.DIAGNOSTIC, said, address))
    return list(runs.values())


def _live(runs: Mapping[Address, Run]) -> set[Address]:
    return {address for address, run in runs.items() if run.record.status.live}


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
