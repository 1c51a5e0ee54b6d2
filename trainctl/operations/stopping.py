"""Ending runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainctl.errors import Busy, NodeError
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.begun import not_there
from trainctl.operations.runs import Run, control, note
from trainctl.operations.workspace import Workspace

_AT_ONCE = 16
"""How many runs are ended at the same time."""


def stop(workspace: Workspace, run: Run, grace_seconds: float, emit: Emit) -> Run:
    """Ask the run's processes to end, make them after the grace, and note how it ended. An ended run stays as it is.

    Busy if it is about to be started and no node knows of it yet; NodeUnreachable if nobody can tell.
    """
    address = run.job.address
    if not run.record.status.live:
        return run
    if not run.record.ranks:
        raise not_there(workspace.ledger.known(), address, run.record)

    def on_event(event: Mapping[str, Any]) -> None:
        count, seconds, grace = event["processes"], event["seconds"], event["grace"]
        left = f"{count} process{'es' if count != 1 else ''} left"
        rest = f", {grace - seconds:.0f} s to end by itself" if seconds < grace else ""
        phase = f"stopping, {left}{rest};"
        emit(Event(EventType.STEP_PROGRESS, phase, address, {"phase": phase}))

    emit(Event(EventType.STEP_STARTED, "stopping", address, {"phase": "stopping;"}))
    now = control(workspace).stop(run.record, grace_seconds, on_event)
    note(workspace, run.job, now)
    emit(Event(EventType.RUN_STATUS, now.status.words, address))
    return Run(run.job, now)


def stop_all(
    workspace: Workspace, runs: Sequence[Run], grace_seconds: float, emit: Emit
) -> list[tuple[Run, NodeError | Busy | None]]:
    """As ``stop``, of many: those that wait first, so that none of them starts as others end; what failed beside the run."""

    def end(run: Run) -> tuple[Run, NodeError | Busy | None]:
        try:
            return stop(workspace, run, grace_seconds, emit), None
        except (NodeError, Busy) as error:
            return run, error

    ended: dict[str, tuple[Run, NodeError | Busy | None]] = {}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="stop") as pool:
        for some in (
            [run for run in runs if run.record.started_at is None],
            [run for run in runs if run.record.started_at is not None],
        ):
            for run, result in zip(some, pool.map(end, some), strict=True):
                ended[run.record.key] = result
    return [ended[run.record.key] for run in runs]
