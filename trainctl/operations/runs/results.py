"""What runs reported and took, of a job, of a sweep, or of several."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from trainctl.base.points import RunPoints
from trainctl.ledger.usage import RunUsage, run_usage
from trainctl.model.address import Address
from trainctl.model.reports import JobStatus, RunResult
from trainctl.model.run import RunStatus
from trainctl.operations.runs.lookup import find_run, with_unrecorded_runs
from trainctl.operations.runs.points import read_points
from trainctl.operations.runs.status import all_run_statuses, is_matrix, job_statuses
from trainctl.operations.workspace import Workspace


def results_of(
    workspace: Workspace, addresses: Sequence[Address] = (), *, with_points: bool = False
) -> list[RunResult]:
    """Return the results of the runs of each job, and of the newest runs of a matrix; by default of all jobs' newest runs.

    Values of runs whose nodes are gone or don't respond are those that were kept. ``with_points``: read all points.
    """
    statuses: dict[str, JobStatus] = {}
    for address in addresses or (None,):
        if address is None or is_matrix(workspace, address):
            found = job_statuses(workspace, address)
        else:
            found = all_run_statuses(workspace, address)
        statuses.update({status.run.id: status for status in found})
    points = _points(workspace, [*statuses.values()], with_points=with_points)
    return with_costs([*statuses.values()], run_usage(workspace.ledger.entries()), points)


def with_costs(
    statuses: Sequence[JobStatus],
    usage: Iterable[RunUsage],
    points: Mapping[str, RunPoints] = MappingProxyType({}),
) -> list[RunResult]:
    """Return the results of runs with their duration and cost, and with points by run key."""
    now = time.time()
    costs = {
        run.id: run.hours(0.0, now) * run.price_per_hour
        for run in usage
        if run.price_per_hour is not None
    }
    return [
        _result(status, costs.get(status.run.id), now, points.get(status.run.key, {}))
        for status in statuses
    ]


def _points(
    workspace: Workspace, statuses: Sequence[JobStatus], *, with_points: bool
) -> dict[str, RunPoints]:
    """Read the points of all runs, or only of those that were lost with their results."""
    state = with_unrecorded_runs(workspace)
    runs = [
        find_run(state, status.address, status.run.id)
        for status in statuses
        if with_points
        or (status.run.status is RunStatus.LOST and not status.run.reported.get("results"))
    ]
    found = read_points(workspace, runs) if runs else {}
    return {run: reported.points for run, reported in found.items()}


def _result(status: JobStatus, cost: float | None, now: float, points: RunPoints) -> RunResult:
    run = status.run
    seconds = run.phases.get("running")
    if seconds is None and run.started_at is not None and run.status.live:
        seconds = max(0.0, now - run.started_at)
    return RunResult(status, seconds, cost, points)
