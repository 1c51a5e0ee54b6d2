"""Stop and follow runs, enter them, send secrets to those that wait for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.base.protocol import WAITS_FOR_RESUME, WAITS_FOR_SECRETS
from trainctl.base.protocol.runs import EnterRequest
from trainctl.errors import LockHeld, NodeError, NodeUnreachable, TrainctlError
from trainctl.model.address import Address
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RankRecord, RunRecord
from trainctl.operations.runs.lookup import (
    JobRun,
    check_rank,
    find_run,
    newest_runs,
    record_run,
    refresh_runs,
    run_control,
    unknown_run_error,
)
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent

if TYPE_CHECKING:
    from trainctl.apply.interrupt import Interrupt

_AT_ONCE = 16
"""How many runs are stopped at the same time."""


def stop_run(workspace: Workspace, run: JobRun, grace_seconds: float, emit: Emit) -> JobRun:
    """Stop a live run, and record the request before and the result after.

    The recorded request keeps the run from being restarted even if its nodes are unreachable.
    LockHeld if an apply is starting the run; NodeUnreachable if that is unknown. NodeError if a
    node is unreachable.
    """
    address = run.job.address
    if not run.record.status.live:
        return run
    if not run.record.ranks:
        raise unknown_run_error(workspace.ledger.known(), address, run.record)

    def on_event(event: Mapping[str, Any]) -> None:
        count, seconds, grace = event["processes"], event["seconds"], event["grace"]
        left = f"{count} process{'es' if count != 1 else ''} left"
        rest = f", {grace - seconds:.0f} s until SIGKILL" if seconds < grace else ""
        phase = f"stopping, {left}{rest};"
        emit(Event(EventType.STEP_PROGRESS, phase, address, {"phase": phase}))

    emit(Event(EventType.STEP_STARTED, "stopping", address, {"phase": "stopping;"}))
    requested = replace(run.record, stop_requested=True)
    record_run(workspace, run.job, requested)
    stopped, error = run_control(workspace).try_stop(requested, grace_seconds, on_event)
    if stopped != requested:
        record_run(workspace, run.job, stopped)
    if error is not None:
        raise _partial_stop_error(stopped, error)
    emit(Event(EventType.RUN_STATUS, stopped.status.words, address))
    return JobRun(run.job, stopped)


def _partial_stop_error(run: RunRecord, error: NodeError) -> NodeError:
    """Return the error of a partial stop: which ranks ended and which didn't."""
    ended = [rank for rank in run.ranks if not rank.status.live]
    left = [rank for rank in run.ranks if rank.status.live]
    if not ended or not isinstance(error, NodeUnreachable):
        return error
    places = ", ".join(f"rank {rank.rank} on {rank.node}" for rank in left)
    done = f"{_rank_names(ended)} {'are' if len(ended) > 1 else 'is'} ended"
    ends = "they stop automatically" if len(left) > 1 else "it stops automatically"
    return NodeUnreachable(
        f"{done}, and {places} couldn't be reached: {ends} within a minute",
        f"{error.summary}. The run is not restarted. To see how it ended, run trainctl status when the node is reachable.",
    )


def _rank_names(ranks: Sequence[RankRecord]) -> str:
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    return f"ranks {numbers}" if len(ranks) > 1 else f"rank {numbers}"


def stop_runs(
    workspace: Workspace, runs: Sequence[JobRun], grace_seconds: float, emit: Emit
) -> list[tuple[JobRun, NodeError | LockHeld | None]]:
    """Stop runs, queued runs first; return the error of each that failed."""

    def stop(run: JobRun) -> tuple[JobRun, NodeError | LockHeld | None]:
        try:
            return stop_run(workspace, run, grace_seconds, emit), None
        except (NodeError, LockHeld) as error:
            return run, error

    stopped: dict[str, tuple[JobRun, NodeError | LockHeld | None]] = {}
    for queued in (True, False):  # otherwise queued runs would start as others end
        group = [run for run in runs if (run.record.started_at is None) is queued]
        stopped |= zip((run.record.key for run in group), each(stop, group, _AT_ONCE), strict=True)
    return [stopped[run.record.key] for run in runs]


def entry_command(
    workspace: Workspace,
    run: JobRun,
    rank: int,
    command: Sequence[str],
    *,
    with_secrets: bool,
    tty: bool,
) -> Sequence[str]:
    """Return a local command line that enters a rank's environment; see ``EnterRequest``.

    NodeUnreachable without a connection. Valid until the workspace is closed.
    """
    agent, node = _agent(workspace, run, rank)
    request = EnterRequest(
        root=node.root, key=run.record.key, command=[*command], with_secrets=with_secrets
    )
    return agent.terminal_command(request, tty=tty)


def forward_port(
    workspace: Workspace, run: JobRun, rank: int, local_port: int, port: int
) -> AbstractContextManager[Callable[[], bool]]:
    """Forward a local port to a rank's node; yields whether it still works."""
    return _agent(workspace, run, rank)[0].interactive().forward(local_port, port)


def extend_session(workspace: Workspace, run: JobRun, minutes: float) -> float | None:
    """Let a live run keep its place for longer; its end in Unix seconds, None while its commands run."""
    return run_control(workspace).extend_session(run.record, minutes * 60)


def ssh_config(workspace: Workspace, runs: Iterable[JobRun]) -> Iterator[str]:
    """Yield a block of ``~/.ssh/config`` for each rank on a host that ssh reaches; see ssh_config(5)."""
    from trainctl.inputs.environment import work_directory

    for run in runs:
        for record in run.record.ranks:
            try:
                agent, node = _agent(workspace, run, record.rank)
                options = agent.interactive().ssh_options
            except NodeError:
                continue  # no ssh host, or not in the state any more
            if options:
                name = re.sub(r"[^A-Za-z0-9._]+", "-", str(run.job.address)[len("job.") :]).strip(
                    "-"
                )
                rank = f"-{record.rank}" if len(run.record.ranks) > 1 else ""
                yield f"# {run.job.address}, run {run.record.number}: {work_directory(node, run.record)}"
                yield f"Host trainctl-{name}{rank}"
                yield from (f"    {option} {value}" for option, value in options.items())


def _agent(workspace: Workspace, run: JobRun, rank: int) -> tuple[NodeAgent, Node]:
    if not run.record.ranks:
        raise unknown_run_error(workspace.ledger.known(), run.job.address, run.record)
    check_rank(run, rank)
    return run_control(workspace).interactive_agent(run.record, rank)


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
            values: dict[str, str] | None = None  # the node has stored them
            if run.record.now.get("waiting") != WAITS_FOR_RESUME:
                names = sorted(set(run.job.job_spec.runtime.secret_environment.values()))
                values = {name: workspace.secrets.value(name) for name in names}
                values |= workspace.checkpoints.values(run.record.store or {})
            record = run_control(workspace).set_secrets(run.record, values)
            record_run(workspace, run.job, record)
            resumed.append(JobRun(run.job, record))
            emit(run_event(resumed[-1]))
        except TrainctlError as error:
            text = f"{error.summary}. {error.detail}".strip()
            emit(Event(EventType.DIAGNOSTIC, text, run.job.address))
    return resumed


def mask_secrets(workspace: Workspace, run: JobRun) -> Iterator[str]:
    """Read secrets that need a command or request, to mask the log; yield which can't be masked."""
    from trainctl.secrets.sources import is_local

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
