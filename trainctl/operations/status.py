"""How jobs stand: their newest run, or a named one, as the nodes tell it."""

from __future__ import annotations

from trainctl.errors import NodeError
from trainctl.model.address import Address
from trainctl.model.status import JobStatus
from trainctl.operations.checkpoints import checkpoints
from trainctl.operations.runs import Run, find_run, newest_runs, refresh
from trainctl.operations.workspace import Workspace


def status(workspace: Workspace, address: Address, run: str | None = None) -> JobStatus:
    """How one job stands."""
    return _look(workspace, find_run(workspace.ledger.state(), address, run))


def all_statuses(workspace: Workspace) -> list[JobStatus]:
    """How every job in the state stands."""
    return [_look(workspace, run) for run in newest_runs(workspace.ledger.state())]


def _look(workspace: Workspace, run: Run) -> JobStatus:
    try:
        run = refresh(workspace, run)
        return JobStatus(run.job.address, run.record, tuple(checkpoints(workspace, run)))
    except NodeError as error:
        return JobStatus(run.job.address, run.record, stale=error.summary)
