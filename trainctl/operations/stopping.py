"""Ending a run."""

from __future__ import annotations

from trainctl.operations.runs import Run, control, note
from trainctl.operations.workspace import Workspace


def stop(workspace: Workspace, run: Run, grace_seconds: float) -> Run:
    """Ask the run's processes to end, make them after the grace, and note how it ended. An ended run stays as it is."""
    if not run.record.status.live:
        return run
    now = control(workspace).stop(run.record, grace_seconds)
    note(workspace, run.job, now)
    return Run(run.job, now)
