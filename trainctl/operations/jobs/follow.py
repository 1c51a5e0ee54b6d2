"""Follow runs to their end, and send secrets to runs that lost them before they began."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from trainctl.apply.interrupt import Interrupt
from trainctl.base.protocol import WAITS_FOR_RESUME, WAITS_FOR_SECRETS
from trainctl.errors import NodeUnreachable, TrainctlError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.jobs.runs import (
    JobRun,
    find_run,
    newest_runs,
    record_run,
    refresh_runs,
    run_control,
)
from trainctl.operations.workspace import Workspace

POLL_SECONDS = 0.5
"""How often a followed run is looked at."""


def follow_runs(
    workspace: Workspace,
    addresses: Iterable[Address],
    emit: Emit,
    interrupt: Interrupt,
    on_end: Callable[[], Iterable[Address]] = tuple,
) -> list[JobRun]:
    """Watch the newest runs of these jobs until each has ended or the user has had enough.

    ``on_end`` is called when one has ended, and names jobs to watch as well.
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
        now = _poll(workspace, list(runs.values()), emit)
        runs = dict(zip(runs, now, strict=True))
        if live - _live(runs):
            with interrupt.uninterruptible():
                more = on_end()
            runs |= {address: find_run(workspace.ledger.state(), address) for address in more}
    for address, run in runs.items():
        if run.record.status.live:
            said = f"run {run.record.number} continues without being followed"
            emit(Event(EventType.DIAGNOSTIC, said, address))
    return list(runs.values())


def _live(runs: Mapping[Address, JobRun]) -> set[Address]:
    return {address for address, run in runs.items() if run.record.status.live}


def _poll(workspace: Workspace, runs: list[JobRun], emit: Emit) -> list[JobRun]:
    seen = refresh_runs(workspace, runs)
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


def run_event(run: JobRun) -> Event:
    """The event that reports the status of a run."""
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


def runs_waiting_for_secrets(workspace: Workspace, name: str | None = None) -> list[JobRun]:
    """The runs that wait for secrets, for one of them, or to go on with those that their nodes keep; without unreachable ones."""
    with_secrets = [
        run
        for run in newest_runs(workspace.ledger.state())
        if run.record.status.live and name in (None, *_secret_names(run.job, run))
    ]
    return filter_waiting([run for run, _ in refresh_runs(workspace, with_secrets)])


def filter_waiting(runs: Iterable[JobRun]) -> list[JobRun]:
    """Those that wait for secrets, or to go on with those that their nodes keep, of runs as they are now."""
    return [run for run in runs if run.record.waiting in (WAITS_FOR_SECRETS, WAITS_FOR_RESUME)]


def send_secrets(workspace: Workspace, runs: Sequence[JobRun], emit: Emit) -> list[JobRun]:
    """Send each run its secrets, as the manifest declares them now, or have it go on with those that are kept; return those that go on.

    Problems are reported per run.
    """
    given = []
    for run in runs:
        try:
            given.append(_send_run_secrets(workspace, run))
            emit(run_event(given[-1]))
        except TrainctlError as error:
            emit(
                Event(
                    EventType.DIAGNOSTIC,
                    f"{error.summary}. {error.detail}".strip(),
                    run.job.address,
                )
            )
    return given


def _send_run_secrets(workspace: Workspace, run: JobRun) -> JobRun:
    values = None if run.record.waiting == WAITS_FOR_RESUME else _secret_values(workspace, run)
    now = run_control(workspace).set_secrets(run.record, values)
    record_run(workspace, run.job, now)
    return JobRun(run.job, now)


def _secret_values(workspace: Workspace, run: JobRun) -> dict[str, str]:
    names = sorted(set(run.job.job_spec.runtime.secret_environment.values()))
    values = {name: workspace.secrets.value(name) for name in names}
    values.update(workspace.checkpoints.values(run.record.store or {}))
    return values


def _secret_names(job: RecordedResource, run: JobRun) -> set[str]:
    """The secrets that the run has."""
    store = (run.record.store or {}).get("secret")
    return {*job.job_spec.runtime.secret_environment.values(), *([str(store)] if store else [])}
