"""Follow runs until they end; send secrets to runs that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trainctl.apply.interrupt import Interrupt
from trainctl.base.protocol import WAITS_FOR_RESUME, WAITS_FOR_SECRETS
from trainctl.errors import NodeUnreachable, TrainctlError
from trainctl.model.address import Address
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.runs.lookup import (
    JobRun,
    find_run,
    newest_runs,
    record_run,
    refresh_runs,
    run_control,
)
from trainctl.operations.workspace import Workspace
from trainctl.secrets.sources import is_local

POLL_SECONDS = 0.5
"""How often a followed run is queried."""


def follow_runs(
    workspace: Workspace,
    addresses: Iterable[Address],
    emit: Emit,
    interrupt: Interrupt,
    on_end: Callable[[], Iterable[Address]] = tuple,
) -> list[JobRun]:
    """Follow the newest runs of jobs until all have ended, or interrupted.

    ``on_end`` is called when a run has ended, and returns more jobs to follow.
    """
    interrupt.begin_watch_only()
    runs = {address: find_run(workspace.ledger.state(), address) for address in addresses}
    for run in runs.values():
        if not run.record.status.live:
            emit(run_event(run))
    while _live(runs):
        if interrupt.stopping.wait(POLL_SECONDS):
            break
        live = _live(runs)
        runs = dict(zip(runs, _poll(workspace, list(runs.values()), emit), strict=True))
        if live - _live(runs):
            with interrupt.uninterruptible():
                more = on_end()
            runs |= {address: find_run(workspace.ledger.state(), address) for address in more}
    for address, run in runs.items():
        if run.record.status.live:
            text = f"run {run.record.number} continues without being followed"
            emit(Event(EventType.DIAGNOSTIC, text, address))
    return list(runs.values())


def _live(runs: Mapping[Address, JobRun]) -> set[Address]:
    return {address for address, run in runs.items() if run.record.status.live}


def _poll(workspace: Workspace, runs: list[JobRun], emit: Emit) -> list[JobRun]:
    refreshed = refresh_runs(workspace, runs)
    for before, (run, problem) in zip(runs, refreshed, strict=True):
        event, address = run_event(run), run.job.address
        if problem is not None and not isinstance(problem, NodeUnreachable):
            raise problem
        if problem is not None:  # retried at the next poll
            data = {"phase": problem.summary}
            emit(Event(EventType.STEP_PROGRESS, problem.summary, address, data))
        elif run.record.status is not before.record.status:
            emit(event)
        elif run.record.status.live:
            emit(Event(EventType.STEP_PROGRESS, event.message, address, {"phase": event.message}))
    return [run for run, _ in refreshed]


def run_event(run: JobRun) -> Event:
    """The event that reports the status of a run."""
    record = run.record
    reason = record.error or record.now.get("waiting")
    text = f"run {record.number} ({record.id}) {record.words}"
    data = {"run": record.id, "status": record.status.value, "exit_code": record.exit_code}
    message = f"{text}: {reason}" if reason else text
    return Event(EventType.RUN_STATUS, message, run.job.address, data)


def runs_waiting_for_secrets(workspace: Workspace, name: str | None = None) -> list[JobRun]:
    """Return the live runs that wait for secrets (one of them if named)."""
    with_secrets = [
        run
        for run in newest_runs(workspace.ledger.state())
        if run.record.status.live and name in (None, *_secret_names(run))
    ]
    return filter_waiting([run for run, _ in refresh_runs(workspace, with_secrets)])


def filter_waiting(runs: Iterable[JobRun]) -> list[JobRun]:
    """Return the runs that wait for secrets, or for using stored ones."""
    return [
        run
        for run in runs
        if run.record.now.get("waiting") in (WAITS_FOR_SECRETS, WAITS_FOR_RESUME)
    ]


def send_secrets(workspace: Workspace, runs: Sequence[JobRun], emit: Emit) -> list[JobRun]:
    """Send secrets to waiting runs, and return the runs that continue.

    Errors are emitted per run.
    """
    resumed = []
    for run in runs:
        try:
            resumed.append(_send_run_secrets(workspace, run))
            emit(run_event(resumed[-1]))
        except TrainctlError as error:
            text = f"{error.summary}. {error.detail}".strip()
            emit(Event(EventType.DIAGNOSTIC, text, run.job.address))
    return resumed


def _send_run_secrets(workspace: Workspace, run: JobRun) -> JobRun:
    values = (
        None
        if run.record.now.get("waiting") == WAITS_FOR_RESUME
        else _secret_values(workspace, run)
    )
    record = run_control(workspace).set_secrets(run.record, values)
    record_run(workspace, run.job, record)
    return JobRun(run.job, record)


def _secret_values(workspace: Workspace, run: JobRun) -> dict[str, str]:
    names = sorted(set(run.job.job_spec.runtime.secret_environment.values()))
    values = {name: workspace.secrets.value(name) for name in names}
    values.update(workspace.checkpoints.values(run.record.store or {}))
    return values


def mask_secrets(workspace: Workspace, run: JobRun) -> Iterator[str]:
    """Read secrets that need a command or request, to mask the log; yield which can't be masked."""
    try:
        specs = workspace.desired.secrets
    except TrainctlError:  # an invalid manifest declares no secrets
        return
    for name in sorted(_secret_names(run) & specs.keys()):
        if not is_local(specs[name]):
            try:
                workspace.secrets.value(name)
            except TrainctlError as error:
                yield f"secret {name} can't be masked in the log: {error.summary}"


def _secret_names(run: JobRun) -> set[str]:
    """Return the names of the run's secrets."""
    store = (run.record.store or {}).get("secret")
    return {*run.job.job_spec.runtime.secret_environment.values(), *([str(store)] if store else [])}
