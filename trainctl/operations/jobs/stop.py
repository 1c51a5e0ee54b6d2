"""Stop runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainctl.base.parallel import each
from trainctl.errors import LockHeld, NodeError, NodeUnreachable
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RankRecord, RunRecord
from trainctl.operations.jobs.runs import JobRun, record_run, run_control, unknown_run_error
from trainctl.operations.workspace import Workspace

_AT_ONCE = 16
"""How many runs are ended at the same time."""


def stop_run(workspace: Workspace, run: JobRun, grace_seconds: float, emit: Emit) -> JobRun:
    """Ask the run's processes to end, make them after the grace, and note how it ended. An ended run stays as it is.

    Busy if it is about to be started and no node knows of it yet; NodeUnreachable if that is unknown.
    The request is recorded first, so that nothing starts the run again, even if its nodes can't be reached. NodeError if some can't.
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
    asked = replace(run.record, stop_requested=True)
    record_run(workspace, run.job, asked)
    now, error = run_control(workspace).try_stop(asked, grace_seconds, on_event)
    if now != asked:
        record_run(workspace, run.job, now)
    if error is not None:
        raise _partial_stop_error(now, error)
    emit(Event(EventType.RUN_STATUS, now.status.words, address))
    return JobRun(run.job, now)


def _partial_stop_error(run: RunRecord, error: NodeError) -> NodeError:
    """The error of a partial stop: which ranks have ended, and what becomes of the others."""
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
    """As ``stop_run``, of many: those that wait first, so that none of them starts as others end; what failed beside the run."""

    def end(run: JobRun) -> tuple[JobRun, NodeError | LockHeld | None]:
        try:
            return stop_run(workspace, run, grace_seconds, emit), None
        except (NodeError, LockHeld) as error:
            return run, error

    ended: dict[str, tuple[JobRun, NodeError | LockHeld | None]] = {}
    for waits in (True, False):
        some = [run for run in runs if (run.record.started_at is None) is waits]
        ended |= zip((run.record.key for run in some), each(end, some, _AT_ONCE), strict=True)
    return [ended[run.record.key] for run in runs]
