"""Status, checkpoints and resource usage of jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.parallel import each
from trainctl.errors import NodeError, NodeUnreachable, StorageError, TrainctlError
from trainctl.inputs.environment import work_directory
from trainctl.model.address import Address, Kind
from trainctl.model.reports import (
    Checkpoint,
    JobStatus,
    RankSample,
    UnreachableNode,
    unreachable_nodes,
)
from trainctl.model.run import RunRecord, RunStatus
from trainctl.operations.runs.checkpoints import known_checkpoints
from trainctl.operations.runs.lookup import (
    JobRun,
    check_rank,
    find_starting_apply,
    refresh_runs,
    run_control,
    select_runs,
    with_unrecorded_runs,
)
from trainctl.operations.workspace import Workspace
from trainctl.resources.runs.run_control import runs_of

if TYPE_CHECKING:
    from trainctl.base.points import RunPoints

_AT_ONCE = 8
"""How many runs' checkpoints are queried at the same time."""


def job_statuses(
    workspace: Workspace, address: Address | None = None, run: str | None = None
) -> list[JobStatus]:
    """Return the status of every recorded job, of those of a matrix, or of one job or run."""
    runs = select_runs(with_unrecorded_runs(workspace), address, run)
    return run_statuses(workspace, runs)


def run_statuses(workspace: Workspace, runs: Sequence[JobRun]) -> list[JobStatus]:
    """Return the statuses of runs."""
    refreshed = refresh_runs(workspace, runs)
    return each(lambda pair: _status_of_run(workspace, *pair), refreshed, _AT_ONCE)


def brief_statuses(
    workspace: Workspace, runs: Sequence[JobRun], *, refresh: bool = True
) -> list[JobStatus]:
    """Return the statuses of runs without their checkpoints; without ``refresh`` as recorded."""
    refreshed = refresh_runs(workspace, runs) if refresh else [(run, None) for run in runs]
    return [_status_of_run(workspace, *pair, brief=True) for pair in refreshed]


def watch_statuses(
    workspace: Workspace, address: Address | None, run: str | None
) -> Iterator[list[JobStatus]]:
    """Yield the statuses of one job, a matrix or all jobs until no run is live."""
    while True:
        statuses = job_statuses(workspace, address, run)
        yield statuses
        if not any(status.run.status.live for status in statuses):
            return
        time.sleep(POLL_SECONDS)


def pending_jobs(
    workspace: Workspace, statuses: Sequence[JobStatus], matrix: Address | None = None
) -> list[Address]:
    """Return approved jobs (of a matrix) whose run a later apply must start.

    Excludes jobs whose run is starting by ``statuses``, and jobs no longer in the manifest.
    """
    starting = {status.address for status in statuses if status.apply is not None}
    approved = workspace.ledger.known().approved
    jobs = [address for address in approved if address.kind is Kind.JOB and address not in starting]
    if jobs:
        with contextlib.suppress(TrainctlError):
            jobs = [job for job in jobs if job in workspace.desired.resources]
    return sorted(job for job in jobs if matrix is None or job.group == matrix)


def _status_of_run(
    workspace: Workspace, run: JobRun, problem: TrainctlError | None, *, brief: bool = False
) -> JobStatus:
    checkpoints: Sequence[Checkpoint] = ()
    unreachable: Sequence[UnreachableNode] = ()
    try:
        enabled = run.job.job_spec.runtime.checkpointing_config.enabled
        is_newest = run.job.outputs["runs"][-1]["id"] == run.record.id
        # an older run may have saved some before its job was changed
        may_have = run.record.started_at is not None and (enabled or not is_newest)
        if may_have and not brief and (problem is None or problem.retryable):
            checkpoints, unreachable = known_checkpoints(workspace, run)
    except (NodeError, StorageError) as error:
        problem = problem or error
    reasons = [problem.summary] if problem else [node.why for node in unreachable]
    completed = None  # the newest completed run before this one
    for record in runs_of(run.job) if run.record.status.live else ():
        if record.number < run.record.number and record.status is RunStatus.COMPLETED:
            completed = record
    directories: dict[int, str] = {}  # of started ranks on known nodes
    control = run_control(workspace, workspace.ledger.known())
    for rank in run.record.ranks if run.record.started_at is not None else ():
        with contextlib.suppress(NodeError):
            _, node = control.node_of_rank(run.record, rank.rank)
            directories[rank.rank] = str(work_directory(node, run.record))
    return JobStatus(
        run.job.address,
        run.record,
        tuple(checkpoints),
        "; ".join(reasons),
        run.matrix,
        _deadline(run.record),
        forecast=completed.phases if completed else {},
        like=completed.number if completed else None,
        workdir=directories,
        apply=find_starting_apply(workspace.ledger.known(), run.job.address, run.record.key),
    )


def _deadline(record: RunRecord) -> float | None:
    """Return the time limit of a live run; None without a limit."""
    limit = record.max_duration_seconds
    if limit is None or record.started_at is None or not record.status.live:
        return None
    return record.started_at + limit


POLL_SECONDS = 2.0
"""How often a followed run is queried; its node takes a sample every 10 s."""

_NODES_AT_ONCE = 16
"""How many nodes are queried at the same time."""


@dataclass(frozen=True, slots=True)
class RunSamples:
    """A run, all known samples of its ranks by time, those that are new, and the unreachable nodes."""

    run: JobRun
    samples: list[RankSample]
    new: list[RankSample]
    unreachable: tuple[UnreachableNode, ...]


def samples_of(
    workspace: Workspace, run: JobRun, only: int | None = None, known: RunSamples | None = None
) -> RunSamples:
    """Query the run and its samples, of all ranks or one, that aren't known yet.

    NodeUnreachable if all nodes are; if some are, the run is partly as recorded.
    """
    check_rank(run, only)
    run, problem = refresh_runs(workspace, [run])[0]
    if problem is not None and not isinstance(problem, NodeUnreachable):
        raise problem
    ranks = [record.rank for record in run.record.ranks if only in (None, record.rank)]
    control, samples = run_control(workspace), known.samples if known else []
    since = {sample.rank: sample.time for sample in samples}

    def query(rank: int) -> list[RankSample] | NodeUnreachable:
        try:
            node, rows = control.metrics(run.record, rank, since.get(rank, 0.0))
        except NodeUnreachable as error:
            return error
        return [RankSample.of(rank, node, row) for row in rows]

    replies = dict(zip(ranks, each(query, ranks, _NODES_AT_ONCE), strict=True))
    errors = {rank: reply for rank, reply in replies.items() if isinstance(reply, NodeUnreachable)}
    if errors and len(errors) == len(ranks):
        raise next(iter(errors.values()))
    new = [sample for reply in replies.values() if isinstance(reply, list) for sample in reply]
    new.sort(key=lambda sample: (sample.time, sample.rank))
    return RunSamples(run, samples + new, new, unreachable_nodes(run.record, errors))


def watch_points(
    workspace: Workspace, runs: Sequence[JobRun], keys: Sequence[str] | None, *, follow: bool
) -> Iterator[list[tuple[JobRun, RunPoints]]]:
    """Yield the runs with their points, of some keys or all; with ``follow`` until all have ended."""
    from trainctl.operations.runs.points import ReportedPoints, read_points

    known: dict[str, ReportedPoints] = {}
    while True:
        current = [run for run, _ in refresh_runs(workspace, runs)]
        known = read_points(workspace, current, keys, known)
        for problem in sorted({known[run.record.key].problem for run in current} - {""}):
            workspace.notify(problem)
        yield [(run, known[run.record.key].points) for run in current]
        if not (follow and any(run.record.status.live for run in current)):
            return
        time.sleep(POLL_SECONDS)


def watch_samples(
    workspace: Workspace, run: JobRun, only: int | None = None
) -> Iterator[RunSamples]:
    """Yield the run and its samples when there are new ones, until it has ended."""
    known: RunSamples | None = None
    while True:
        try:
            known = samples_of(workspace, known.run if known else run, only, known)
        except NodeUnreachable as error:
            workspace.notify(f"{error.summary}; retrying")
        else:
            for node in known.unreachable:
                workspace.notify(f"{node.why}; retrying")
            if known.new or not known.run.record.status.live:
                yield known
            if not known.run.record.status.live:
                return
        time.sleep(POLL_SECONDS)
