"""Runs that a job's next run must wait for, and the live run that it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainctl.apply.step import ApplyStep
from trainctl.errors import TrainctlError
from trainctl.ledger.state import Lookup, RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.resources.agents import nodes_of
from trainctl.resources.runs.run_control import ObservedRun, RunControl, runs_of


@dataclass(frozen=True, slots=True)
class BlockingRuns:
    """Live runs to wait for, and the only possible node's id; or why to defer."""

    follows: tuple[tuple[Address, RunRecord], ...] = ()
    node: str | None = None
    blocked_reason: str = ""


def find_blocking_runs(
    control: RunControl, lookup: Lookup, depends_on: Iterable[Address], nodes: Iterable[str]
) -> BlockingRuns:
    """Query the dependencies of a job that may run on any of the nodes (ids)."""
    possible = set(nodes)
    jobs = [address for address in depends_on if address.kind is Kind.JOB]
    newest = {address: next(reversed(runs_of(lookup(address))), None) for address in jobs}
    observed = control.statuses([run for run in newest.values() if run and run.status.live])
    follows: list[tuple[Address, RunRecord]] = []
    blockers: list[str] = []
    for address, recorded in newest.items():
        if recorded is None:
            blockers.append(f"{address} has not run yet")
            continue
        run, problem = observed.get(recorded.key, ObservedRun(recorded, None))
        nodes_of_run = {rank.node for rank in run.ranks}
        if problem is not None:
            blockers.append(f"{address}: {problem.summary}")
        elif run.status.live and len(nodes_of_run) == 1 and nodes_of_run <= possible:
            possible = nodes_of_run
            follows.append((address, run))
        elif run.status.live:
            nodes_in_use = ", ".join(rank.node for rank in run.ranks)
            blockers.append(f"run {run.number} of {address} is live on {nodes_in_use}")
        elif run.status is not RunStatus.COMPLETED:
            blockers.append(f"run {run.number} of {address}: {run.status.words}")
    if not blockers:
        return BlockingRuns(tuple(follows), next(iter(possible)) if follows else None)
    more = f", and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    return BlockingRuns(blocked_reason=f"waits: {blockers[0]}{more}")


def possible_nodes(cluster: RecordedResource | None, job: JobSpec) -> list[str]:
    """Return the ids of nodes where a run may wait; none for a job on several."""
    nodes = nodes_of(cluster) if cluster else ()
    return [node.id for node in nodes] if 1 in (job.compute.node_count, len(nodes)) else []


class ReplacedRun:
    """Earlier runs of a job; the newest may be live."""

    def __init__(self, step: ApplyStep, control: RunControl, earlier: Sequence[RunRecord]) -> None:
        self.earlier = tuple(earlier)
        self._step = step
        self._control = control
        self._live = self.earlier[-1] if earlier and is_active(earlier[-1]) else None

    @property
    def key(self) -> str | None:
        """The key of the live run."""
        return self._live.key if self._live else None

    def stop(self) -> bool:
        """Stop the live run and log it; return whether there was one."""
        if self._live is None:
            return False
        self._step.notify(f"stops {_run_name(self._live)}")
        self.earlier = (*self.earlier[:-1], self._control.stop(self._live))
        self._live = None
        return True

    def note_survivor(self, error: TrainctlError) -> bool:
        """Add to a new run's error that the live run continues; False if none is."""
        if self._live is None:
            return False
        error.detail = f"{error.detail}\n{_run_name(self._live).capitalize()} continues.".lstrip()
        return True


def is_active(run: RunRecord) -> bool:
    """Whether any rank may be live, though another rank was lost."""
    return run.status.live or any(rank.status.live for rank in run.ranks)


def _run_name(run: RunRecord) -> str:
    return f"run {run.number} ({run.id})"
