"""Ending runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trainctl.errors import NodeError
from trainctl.operations.runs import Run, control, note
from trainctl.operations.workspace import Workspace

_AT_ONCE = 16
"""How many runs are ended at the same time."""


def stop(workspace: Workspace, run: Run, grace_seconds: float) -> Run:
    """Ask the run's processes to end, make them after the grace, and note how it ended. An ended run stays as it is."""
    if not run.record.status.live:
        return run
    now = control(workspace).stop(run.record, grace_seconds)
    note(workspace, run.job, now)
    return Run(run.job, now)


def stop_all(
    workspace: Workspace, runs: Sequence[Run], grace_seconds: float
) -> list[tuple[Run, NodeError | None]]:
    """As ``stop``, of many: those that wait first, so that none of them starts as others end; what failed beside the run."""

    def end(run: Run) -> tuple[Run, NodeError | None]:
        try:
            return stop(workspace, run, grace_seconds), None
        except NodeError as error:
            return run, error

    ended: dict[str, tuple[Run, NodeError | None]] = {}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="stop") as pool:
        for some in (
            [run for run in runs if run.record.started_at is None],
            [run for run in runs if run.record.started_at is not None],
        ):
            for run, result in zip(some, pool.map(end, some), strict=True):
                ended[run.record.key] = result
    return [ended[run.record.key] for run in runs]
