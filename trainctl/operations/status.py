"""How jobs stand: their newest run, or a named one, as the nodes tell it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trainctl.errors import NodeError, StorageError, TrainctlError
from trainctl.jobs.environment import work_directory
from trainctl.model.address import Address, Kind
from trainctl.model.reports import Away, Checkpoint, JobStatus
from trainctl.model.run import RunRecord, RunStatus
from trainctl.operations.begun import beginner, with_begun
from trainctl.operations.checkpoints import known_checkpoints
from trainctl.operations.runs import Run, find_run, jobs_of_matrix, newest_runs, refresh_all
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import node_named
from trainctl.resources.run_control import runs_of

_AT_ONCE = 8
"""How many runs are asked for their checkpoints at the same time."""


def status(workspace: Workspace, address: Address, run: str | None = None) -> JobStatus:
    """How one job stands."""
    return _look(workspace, [find_run(with_begun(workspace), address, run)])[0]


def is_matrix(workspace: Workspace, address: Address) -> bool:
    """Whether the address is what the jobs of a matrix have in common."""
    return bool(jobs_of_matrix(with_begun(workspace), address))


def all_statuses(workspace: Workspace, address: Address | None = None) -> list[JobStatus]:
    """How every job in the state stands, or every job of one matrix."""
    return _look(workspace, list(newest_runs(with_begun(workspace), address)))


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


def _look(workspace: Workspace, runs: Sequence[Run]) -> list[JobStatus]:
    seen = refresh_all(workspace, runs)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoints") as pool:
        return list(pool.map(lambda one: _one(workspace, *one), seen))


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
    """Nobody is asked about those of a run that never began, or whose job keeps none."""
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
