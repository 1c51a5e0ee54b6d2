"""Runs that a job's next run has to wait for, and the live run that a new one replaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trainctl.apply.step import ApplyStep, Lookup
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.resources.agents import nodes_of
from trainctl.resources.run_control import ObservedRun, RunControl, runs_of


@dataclass(frozen=True, slots=True)
class BlockingRuns:
    """What stands before a job: live runs to follow, on the only ``node`` (its id) where that is possible, or why it can't be started yet."""

    follows: tuple[tuple[Address, RunRecord], ...] = ()
    node: str | None = None
    blocked_reason: str = ""


@dataclass
class _DependencyRuns:
    follows: list[tuple[Address, RunRecord]] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)


def find_blocking_runs(
    control: RunControl, lookup: Lookup, depends_on: Iterable[Address], nodes: Iterable[str]
) -> BlockingRuns:
    """What stands before a job whose next run may be on any one of the nodes, by id, as the nodes tell it now."""
    possible = set(nodes)
    jobs = [address for address in depends_on if address.kind is Kind.JOB]
    newest = {address: next(reversed(runs_of(lookup(address))), None) for address in jobs}
    now = control.statuses([run for run in newest.values() if run and run.status.live])
    found = _DependencyRuns()
    for address, recorded in newest.items():
        if recorded is None:
            found.blockers.append(f"{address} has not run yet")
            continue
        run, problem = now.get(recorded.key, ObservedRun(recorded, None))
        if problem is not None:
            found.blockers.append(f"{address}: {problem.summary}")
        elif run.status.live and len(run.ranks) == 1 and run.ranks[0].node in possible:
            possible = {run.ranks[0].node}
            found.follows.append((address, run))
        elif run.status.live:
            where = ", ".join(rank.node for rank in run.ranks)
            found.blockers.append(f"run {run.number} of {address} is live on {where}")
        elif run.status is not RunStatus.COMPLETED:
            found.blockers.append(f"run {run.number} of {address}: {run.status.words}")
    if not found.blockers:
        return BlockingRuns(tuple(found.follows), next(iter(possible)) if found.follows else None)
    more = f", and {len(found.blockers) - 1} more" if len(found.blockers) > 1 else ""
    return BlockingRuns(blocked_reason=f"waits: {found.blockers[0]}{more}")


def possible_nodes(cluster: RecordedResource | None, job: JobSpec) -> list[str]:
    """The nodes, by id, on which a job's next run could follow another: none for a run on several nodes."""
    nodes = nodes_of(cluster) if cluster else ()
    return [node.id for node in nodes] if job.compute.node_count == 1 else []


class ReplacedRun:
    """A job's earlier runs, of which the newest may be live."""

    def __init__(self, step: ApplyStep, control: RunControl, earlier: Sequence[RunRecord]) -> None:
        self.earlier = tuple(earlier)
        self._step = step
        self._control = control
        self._live = self.earlier[-1] if earlier and is_active(earlier[-1]) else None

    @property
    def key(self) -> str | None:
        """The live run's."""
        return self._live.key if self._live else None

    def stop(self) -> bool:
        """End the live run, and say so; whether there was one until now."""
        if self._live is None:
            return False
        self._step.tell(f"stops {_run_name(self._live)}")
        self.earlier = (*self.earlier[:-1], self._control.stop(self._live))
        self._live = None
        return True

    def note_survivor(self, error: TrainctlError) -> bool:
        """Whether the live run goes on although the new one failed; if so, the error tells it."""
        if self._live is None:
            return False
        error.detail = f"{error.detail}\n{_run_name(self._live).capitalize()} continues.".lstrip()
        return True


def is_active(run: RunRecord) -> bool:
    """Whether anything of it may still do something: of a gang that has lost a rank the others."""
    return run.status.live or any(rank.status.live for rank in run.ranks)


def _run_name(run: RunRecord) -> str:
    return f"run {run.number} ({run.id})"
