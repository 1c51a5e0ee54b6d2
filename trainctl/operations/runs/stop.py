"""Stop runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainctl.base.parallel import each
from trainctl.errors import LockHeld, NodeError, NodeUnreachable
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RankRecord, RunRecord
from trainctl.operations.runs.lookup import JobRun, record_run, run_control, unknown_run_error
from trainctl.operations.workspace import Workspace

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
