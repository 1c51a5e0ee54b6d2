"""Following runs to their end; holds nothing, so that who has seen enough may leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trainctl.apply.interrupt import Interrupt
from trainctl.errors import NodeUnreachable
from trainctl.model.address import Address
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.runs import Run, find_run, refresh_all
from trainctl.operations.workspace import Workspace

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
