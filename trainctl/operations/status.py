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
from trainctl.model.metrics import Sample
from trainctl.model.reports import Away, Checkpoint, JobStatus, away_of
from trainctl.model.run import RunRecord, RunStatus
from trainctl.operations.checkpoints import known_checkpoints
from trainctl.operations.runs import (
    Run,
    beginner,
    check_rank,
    control,
    find_run,
    jobs_of_matrix,
    newest_runs,
    refresh_all,
    with_begun,
)
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import node_named
from trainctl.resources.run_control import runs_of

_AT_ONCE = 8
"""How many runs are asked for their checkpoints at the same time."""


def status(workspace: Workspace, address: Address, run: str | None = None) -> JobStatus:
    """How one job stands."""
    return _statuses(workspace, [find_run(with_begun(workspace), address, run)])[0]


def is_matrix(workspace: Workspace, address: Address) -> bool:
    """Whether the address is what the jobs of a matrix have in common."""
    return bool(jobs_of_matrix(with_begun(workspace), address))


def all_statuses(workspace: Workspace, address: Address | None = None) -> list[JobStatus]:
    """How every job in the state stands, or every job of one matrix."""
    return _statuses(workspace, list(newest_runs(with_begun(workspace), address)))


def not_begun(
    workspace: Workspace, found: Sequence[JobStatus], matrix: Address | None = None
) -> list[Address]:
    """The jobs, or those of one matrix, that an apply was allowed to give a run and has left for later; as far as the
    manifest, if it can be read, still has them. Those ``found`` to be given one are not among them."""
    begun = {one.address for one in found if one.apply is not None}
    approved = workspace.ledger.known().approved
    jobs = [one for one in approved if one.kind is Kind.JOB and one not in begun]
    if jobs:
        with contextlib.suppress(TrainctlError):
            jobs = [one for one in jobs if one in workspace.desired.resources]
    return sorted(one for one in jobs if matrix is None or one.group == matrix)


def _statuses(workspace: Workspace, runs: Sequence[Run]) -> list[JobStatus]:
    seen = refresh_all(workspace, runs)
    return each(lambda one: _one(workspace, *one), seen, _AT_ONCE)


def _one(workspace: Workspace, run: Run, problem: TrainctlError | None) -> JobStatus:
    found: Sequence[Checkpoint] = ()
    missing: Sequence[Away] = ()
    try:
        if (problem is None or problem.retryable) and _may_have_checkpoints(run):
            found, missing = known_checkpoints(workspace, run)
    except (NodeError, StorageError) as error:
        problem = problem or error
    matrix = tuple((one.name, one.value) for one in run.job.job_spec.matrix or ())
    why = [problem.summary] if problem else [one.why for one in missing]
    like = _like(run) if run.record.status.live else None
    return JobStatus(
        run.job.address,
        run.record,
        tuple(found),
        "; ".join(why),
        matrix,
        deadline=_deadline(run),
        forecast=like.phases if like else {},
        like=like.number if like else None,
        work=_work(workspace, run.record),
        apply=beginner(workspace.ledger.known(), run.job.address, run.record.key),
    )


def _work(workspace: Workspace, run: RunRecord) -> dict[int, str]:
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


def _may_have_checkpoints(run: Run) -> bool:
    """Whether to ask: a run that never began has none, nor has one whose job keeps none."""
    enabled = run.job.job_spec.runtime.checkpointing_config.enabled
    newest = run.job.outputs["runs"][-1]["id"] == run.record.id
    return run.record.started_at is not None and (enabled or not newest)


def _deadline(run: Run) -> float | None:
    """When the run is ended, if it still runs and may not last for ever."""
    longest, record = run.job.job_spec.max_duration_seconds, run.record
    if longest is None or record.started_at is None or not record.status.live:
        return None
    return record.started_at + longest


def _like(run: Run) -> RunRecord | None:
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

    run: Run
    samples: list[Sample]
    away: tuple[Away, ...]


def samples_of(
    workspace: Workspace,
    run: Run,
    only: int | None = None,
    since: Mapping[int, float] | None = None,
) -> RunSamples:
    """The run as it stands, and the samples of all ranks, or of one; ``since`` are the times of those of each rank that are known already.

    NodeUnreachable if all nodes are; if some are, the run is as it was last seen.
    """
    check_rank(run, only)
    run, problem = refresh_all(workspace, [run])[0]
    if problem is not None and not isinstance(problem, NodeUnreachable):
        raise problem
    wanted = [one.rank for one in run.record.ranks if only in (None, one.rank)]
    runs, known = control(workspace), since or {}

    def ask(rank: int) -> list[Sample] | NodeUnreachable:
        try:
            node, rows = runs.metrics(run.record, rank, known.get(rank, 0.0))
        except NodeUnreachable as error:
            return error
        return [Sample.of(rank, node, row) for row in rows]

    told = dict(zip(wanted, each(ask, wanted, _NODES_AT_ONCE), strict=True))
    silent = {rank: one for rank, one in told.items() if isinstance(one, NodeUnreachable)}
    if silent and len(silent) == len(wanted):
        raise next(iter(silent.values()))
    samples = [sample for one in told.values() if isinstance(one, list) for sample in one]
    samples.sort(key=lambda one: (one.time, one.rank))
    return RunSamples(run, samples, away_of(run.record, silent))


def watch(
    workspace: Workspace, run: Run, only: int | None = None
) -> Iterator[tuple[Run, list[Sample]]]:
    """The run and its new samples, again and again until it has ended; the first time all there are."""
    known: dict[int, float] = {}
    while True:
        try:
            seen = samples_of(workspace, run, only, known)
        except NodeUnreachable as error:
            workspace.tell(f"{error.summary}; trying again")
        else:
            for one in seen.away:
                workspace.tell(f"{one.why}; trying again")
            run = seen.run
            known |= {one.rank: one.time for one in seen.samples}
            yield run, seen.samples
            if not run.record.status.live:
                return
        time.sleep(POLL_SECONDS)
