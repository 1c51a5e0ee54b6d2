"""The status of jobs and what their runs use, as the nodes report it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainctl.base.parallel import each
from trainctl.errors import NodeError, NodeUnreachable, StorageError, TrainctlError
from trainctl.jobs.environment import work_directory
from trainctl.model.address import Address, Kind
from trainctl.model.reports import (
    Checkpoint,
    JobStatus,
    RankSample,
    UnreachableNode,
    unreachable_nodes,
)
from trainctl.model.run import RunRecord, RunStatus
from trainctl.operations.jobs.checkpoints import known_checkpoints
from trainctl.operations.jobs.runs import (
    JobRun,
    check_rank,
    find_run,
    find_starting_apply,
    jobs_of_matrix,
    newest_runs,
    refresh_runs,
    run_control,
    with_unrecorded_runs,
)
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import node_named
from trainctl.resources.run_control import runs_of

_AT_ONCE = 8
"""How many runs are asked for their checkpoints at the same time."""


def job_status(workspace: Workspace, address: Address, run: str | None = None) -> JobStatus:
    """How one job stands."""
    return _refresh_statuses(workspace, [find_run(with_unrecorded_runs(workspace), address, run)])[
        0
    ]


def is_matrix(workspace: Workspace, address: Address) -> bool:
    """Whether the address is what the jobs of a matrix have in common."""
    return bool(jobs_of_matrix(with_unrecorded_runs(workspace), address))


def job_statuses(workspace: Workspace, address: Address | None = None) -> list[JobStatus]:
    """How every job in the state stands, or every job of one matrix."""
    return _refresh_statuses(workspace, list(newest_runs(with_unrecorded_runs(workspace), address)))


def pending_jobs(
    workspace: Workspace, found: Sequence[JobStatus], matrix: Address | None = None
) -> list[Address]:
    """The jobs, or those of one matrix, that an apply was allowed to give a run and has left for later; as far as the
    manifest, if it can be read, still has them. Those ``found`` to be given one are not among them."""
    begun = {one.address for one in found if one.apply is not None}
    approved = workspace.ledger.known().approved
    jobs = [one for one in approved if one.kind is Kind.JOB and one not in begun]
    if jobs:
        with contextlib.suppress(TrainctlError):
            jobs = [job for job in jobs if job in workspace.desired.resources]
    return sorted(job for job in jobs if matrix is None or job.group == matrix)


def _refresh_statuses(workspace: Workspace, runs: Sequence[JobRun]) -> list[JobStatus]:
    seen = refresh_runs(workspace, runs)
    return each(lambda one: _status_of_run(workspace, *one), seen, _AT_ONCE)


def _status_of_run(workspace: Workspace, run: JobRun, problem: TrainctlError | None) -> JobStatus:
    found: Sequence[Checkpoint] = ()
    missing: Sequence[UnreachableNode] = ()
    try:
        if (problem is None or problem.retryable) and _may_have_checkpoints(run):
            found, missing = known_checkpoints(workspace, run)
    except (NodeError, StorageError) as error:
        problem = problem or error
    matrix = tuple((one.name, one.value) for one in run.job.job_spec.matrix or ())
    why = [problem.summary] if problem else [one.why for one in missing]
    like = _last_completed(run) if run.record.status.live else None
    return JobStatus(
        run.job.address,
        run.record,
        tuple(found),
        "; ".join(why),
        matrix,
        deadline=_deadline(run),
        forecast=like.phases if like else {},
        like=like.number if like else None,
        workdir=_workdirs(workspace, run.record),
        apply=find_starting_apply(workspace.ledger.known(), run.job.address, run.record.key),
    )


def _workdirs(workspace: Workspace, run: RunRecord) -> dict[int, str]:
    """The working directories of a run that began, on the nodes that are known."""
    found: dict[int, str] = {}
    for rank in run.ranks if run.started_at is not None else ():
        cluster = workspace.ledger.state().resources.get(
            Address(Kind.CLUSTER, rank.node.partition("/")[0])
        )
        node = node_named(cluster, rank.node) if cluster else None
        if node is not None:
            found[rank.rank] = str(work_directory(node, run))
    return found


def _may_have_checkpoints(run: JobRun) -> bool:
    """Whether to ask: a run that never began has none, nor has one whose job keeps none."""
    enabled = run.job.job_spec.runtime.checkpointing_config.enabled
    newest = run.job.outputs["runs"][-1]["id"] == run.record.id
    return run.record.started_at is not None and (enabled or not newest)


def _deadline(run: JobRun) -> float | None:
    """When the run is ended, if it still runs and may not last for ever."""
    longest, record = run.job.job_spec.max_duration_seconds, run.record
    if longest is None or record.started_at is None or not record.status.live:
        return None
    return record.started_at + longest


def _last_completed(run: JobRun) -> RunRecord | None:
    """The newest run before this one that completed."""
    before = [one for one in runs_of(run.job) if one.number < run.record.number]
    return next((one for one in reversed(before) if one.status is RunStatus.COMPLETED), None)


POLL_SECONDS = 2.0
"""How often a run that is watched is looked at; its node takes a sample every 10 s."""

_NODES_AT_ONCE = 16
"""How many nodes are asked at the same time."""


@dataclass(frozen=True, slots=True)
class RunSamples:
    """A run with samples of its ranks, by time, and the nodes that could not be asked."""

    run: JobRun
    samples: list[RankSample]
    unreachable: tuple[UnreachableNode, ...]


def samples_of(
    workspace: Workspace,
    run: JobRun,
    only: int | None = None,
    since: Mapping[int, float] | None = None,
) -> RunSamples:
    """The run as it stands, and the samples of all ranks, or of one; ``since`` are the times of those of each rank that are known already.

    NodeUnreachable if all nodes are; if some are, the run is as it was last seen.
    """
    check_rank(run, only)
    run, problem = refresh_runs(workspace, [run])[0]
    if problem is not None and not isinstance(problem, NodeUnreachable):
        raise problem
    wanted = [one.rank for one in run.record.ranks if only in (None, one.rank)]
    runs, known = run_control(workspace), since or {}

    def ask(rank: int) -> list[RankSample] | NodeUnreachable:
        try:
            node, rows = runs.metrics(run.record, rank, known.get(rank, 0.0))
        except NodeUnreachable as error:
            return error
        return [RankSample.of(rank, node, row) for row in rows]

    told = dict(zip(wanted, each(ask, wanted, _NODES_AT_ONCE), strict=True))
    failures = {rank: one for rank, one in told.items() if isinstance(one, NodeUnreachable)}
    if failures and len(failures) == len(wanted):
        raise next(iter(failures.values()))
    samples = [sample for one in told.values() if isinstance(one, list) for sample in one]
    samples.sort(key=lambda one: (one.time, one.rank))
    return RunSamples(run, samples, unreachable_nodes(run.record, failures))


def watch_samples(
    workspace: Workspace, run: JobRun, only: int | None = None
) -> Iterator[tuple[JobRun, list[RankSample]]]:
    """The run and its new samples, again and again until it has ended; the first time all there are."""
    known: dict[int, float] = {}
    while True:
        try:
            seen = samples_of(workspace, run, only, known)
        except NodeUnreachable as error:
            workspace.tell(f"{error.summary}; retrying")
        else:
            for one in seen.unreachable:
                workspace.tell(f"{one.why}; retrying")
            run = seen.run
            known |= {sample.rank: sample.time for sample in seen.samples}
            yield run, seen.samples
            if not run.record.status.live:
                return
        time.sleep(POLL_SECONDS)
