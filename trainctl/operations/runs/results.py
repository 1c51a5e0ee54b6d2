"""What runs reported and took, and their checkpoints by that: of a job, of a sweep, or of several."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence

from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.points import RunPoints
from trainctl.errors import NodeUnreachable, TrainctlError, UsageError
from trainctl.ledger.usage import RunUsage, run_usage
from trainctl.model.address import Address, Kind
from trainctl.model.reports import Checkpoint, JobStatus, RunResult
from trainctl.model.run import RunStatus
from trainctl.model.specs.location import CheckpointRanking
from trainctl.operations.runs.checkpoints import list_checkpoints
from trainctl.operations.runs.lookup import (
    JobRun,
    find_run,
    newest_runs,
    refresh_runs,
    select_runs,
    with_unrecorded_runs,
)
from trainctl.operations.runs.points import read_points
from trainctl.operations.runs.status import run_statuses
from trainctl.operations.workspace import Workspace
from trainctl.resources.runs.run_control import runs_of


def results_of(
    workspace: Workspace, addresses: Sequence[Address] = (), *, with_points: bool = False
) -> list[RunResult]:
    """Return the results of the runs of each job, and of the newest runs of a matrix; by default of all jobs' newest runs.

    Values of runs whose nodes are gone or don't respond are those that were kept. ``with_points``: read all points.
    """
    state, runs = with_unrecorded_runs(workspace), dict[str, JobRun]()
    for address in addresses or (None,):
        found = [*newest_runs(state, address)]
        if address is not None and not found:
            job = find_run(state, address).job
            found = [JobRun(job, run) for run in runs_of(job)]
        runs |= {run.record.id: run for run in found}
    statuses = run_statuses(workspace, [*runs.values()])
    unread = [
        JobRun(runs[status.run.id].job, status.run)
        for status in statuses
        if with_points
        or (status.run.status is RunStatus.LOST and not status.run.reported.get("results"))
    ]
    points = {key: of.points for key, of in read_points(workspace, unread).items()}
    return with_costs(statuses, run_usage(workspace.ledger.entries()), points)


def with_costs(
    statuses: Sequence[JobStatus],
    usage: Iterable[RunUsage],
    points: Mapping[str, RunPoints] | None = None,
) -> list[RunResult]:
    """Return the results of runs with their duration and cost, and with points by run key."""
    now = time.time()
    costs = {
        run.id: run.hours(0.0, now) * run.price_per_hour
        for run in usage
        if run.price_per_hour is not None
    }
    return [
        RunResult(
            status,
            status.run.running_seconds(now),
            costs.get(status.run.id),
            (points or {}).get(status.run.key, {}),
        )
        for status in statuses
    ]


class BestCheckpoint(NamedTuple):
    """The best checkpoint of some runs; ``text`` says what it was compared with, ``pin`` is RUN/CHECKPOINT."""

    run: JobRun
    name: str
    text: str
    pin: str


def rank_checkpoints(
    workspace: Workspace,
    runs: Sequence[JobRun],
    checkpoints: Sequence[Checkpoint],
    by: CheckpointRanking,
) -> list[Checkpoint]:
    """Return checkpoints with their values, the best first and those without a value last.

    The value is the last that was reported up to its step, or that of its evaluation by ``JOB.KEY``. UsageError if none
    has one.
    """
    job, _, key = by.metric.partition(".")
    values: dict[tuple[str, str], float | None] = {}
    if evaluations := _evaluation_runs(workspace, job) if key else []:
        for run, _ in refresh_runs(workspace, evaluations):
            for row in run.record.reported.get("evaluations") or ():
                if row["status"] == "completed":
                    saved_by = row["run"].rpartition("/")[2].partition("-")[2]
                    values[saved_by, row["name"]] = row["values"].get(key)
    else:
        reported = read_points(workspace, runs, [by.metric])
        points = {run.record.id: reported[run.record.key].points for run in runs}
        for each in checkpoints:
            of_run = points[each.run].get(by.metric)
            if of_run is not None and each.step is not None:
                values[each.run, each.name] = of_run.value_at(each.step)
    valued = [replace(each, value=values.get((each.run, each.name))) for each in checkpoints]
    if all(each.value is None for each in valued):
        summary = f"no checkpoint has a value of {by.metric}"
        raise UsageError(summary, "To list the keys: trainctl results.", code="unknown-result")
    sign = -1 if by.mode == "max" else 1

    def order(each: Checkpoint) -> tuple[float, int, int]:
        return math.inf if each.value is None else sign * each.value, each.step or 0, each.rank

    return sorted(valued, key=order)


def _evaluation_runs(workspace: Workspace, name: str) -> list[JobRun]:
    """Return all runs of the jobs of this name that evaluate checkpoints."""
    state = workspace.ledger.state()
    return [
        JobRun(job, run)
        for address, job in sorted({**state.forgotten, **state.resources}.items())
        if address.kind is Kind.JOB and address.name == name and job.job_spec.followed_job
        for run in runs_of(job)
    ]


def find_best(
    workspace: Workspace, runs: Sequence[JobRun], by: CheckpointRanking
) -> BestCheckpoint:
    """Return the best complete checkpoint; UsageError if none has a value, NodeUnreachable if some are unknown."""
    checkpoints, unreachable = list_checkpoints(workspace, runs)
    if unreachable:
        raise NodeUnreachable(f"the best checkpoint is unknown: {unreachable[0].why}")
    partial = {(each.run, each.name) for each in checkpoints if not each.complete}
    usable = [each for each in checkpoints if (each.run, each.name) not in partial]
    ranked = rank_checkpoints(workspace, runs, usable, by)
    names = {(each.run, each.name) for each in ranked if each.value is not None}
    best = ranked[0]
    run = next(run for run in runs if run.record.id == best.run)
    extreme = "highest" if by.mode == "max" else "lowest"
    count = len({saved_by for saved_by, _ in names})
    compared = f"{extreme} of {len(names)} in {count} run{'s' if count > 1 else ''}"
    text = f"{best.name} of run {run.record.number} ({best.run}) of {best.job}, step {best.step}"
    text = f"{text}: {by.metric} {best.value:.4g}, {compared}"
    return BestCheckpoint(run, best.name, text, f"{best.run}/{best.name}")


def choose_best(workspace: Workspace) -> dict[str, tuple[str, str]]:
    """Return the best checkpoints that jobs of the manifest load, if all runs that save or evaluate them have ended."""
    loads = [load for job in workspace.desired.jobs() for load in job.job_spec.runtime.loads]
    chosen: dict[str, tuple[str, str]] = {}
    for load in {load.best_of: load for load in loads if load.metric and load.job}.values():
        by = CheckpointRanking.read(str(load.metric))
        try:
            runs = select_runs(workspace.ledger.state(), Address.parse(load.job or ""))
            evaluations = _evaluation_runs(workspace, by.metric.partition(".")[0])
            refreshed = [run for run, _ in refresh_runs(workspace, [*runs, *evaluations])]
            if not any(run.record.status.live for run in refreshed):
                best = find_best(workspace, refreshed[: len(runs)], by)
                chosen[load.best_of] = best.pin, best.text
        except TrainctlError as error:
            if error.code not in ("not-in-state", "run-not-found"):
                workspace.notify(f"best checkpoint of {load.job}: {error.summary}")
    return chosen
