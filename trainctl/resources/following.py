"""Runs that a job's next run has to wait for: on its own node its supervisor waits for them, elsewhere nobody can.

Nor does anyone wait on a node for a run of several ranks, of which each node knows its own rank only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainctl.apply.step import Lookup
from trainctl.ledger.state import Recorded
from trainctl.model.address import Address, Kind
from trainctl.model.job_spec import JobSpec
from trainctl.model.run import RunRecord, RunStatus
from trainctl.resources.agents import nodes_of
from trainctl.resources.run_control import RunControl, Told, runs_of


@dataclass(frozen=True, slots=True)
class Ahead:
    """What stands before a job: live runs to follow, on the only ``node`` (its id) where that is possible, or why it can't be started yet."""

    follows: tuple[tuple[Address, RunRecord], ...] = ()
    node: str | None = None
    why_not: str = ""


@dataclass
class _Found:
    follows: list[tuple[Address, RunRecord]] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)


def ahead(
    control: RunControl, lookup: Lookup, depends_on: Iterable[Address], nodes: Iterable[str]
) -> Ahead:
    """What stands before a job whose next run may be on any one of the nodes, by id, as the nodes tell it now."""
    possible = set(nodes)
    newest = {address: _newest(lookup(address)) for address in depends_on if _is_job(address)}
    live = [run for run in newest.values() if run is not None and run.status.live]
    now = control.statuses(live)
    found = _Found()
    for address, recorded in newest.items():
        if recorded is None:
            found.blockers.append(f"{address} has not run")
            continue
        run, problem = now.get(recorded.key, Told(recorded, None))
        if problem is not None:
            found.blockers.append(f"{address}: {problem.summary}")
        elif run.status.live and len(run.ranks) == 1 and run.ranks[0].node in possible:
            possible = {run.ranks[0].node}
            found.follows.append((address, run))
        elif run.status.live:
            where = ", ".join(rank.node for rank in run.ranks)
            found.blockers.append(f"run {run.number} of {address} goes on, on {where}")
        elif run.status is not RunStatus.COMPLETED:
            found.blockers.append(f"run {run.number} of {address}: {run.status.words}")
    if not found.blockers:
        return Ahead(tuple(found.follows), next(iter(possible)) if found.follows else None)
    more = f", and {len(found.blockers) - 1} more" if len(found.blockers) > 1 else ""
    return Ahead(why_not=f"waits: {found.blockers[0]}{more}")


def possible_nodes(cluster: Recorded | None, job: JobSpec) -> list[str]:
    """The nodes, by id, on which a job's next run could follow another: none for a run on several nodes."""
    nodes = nodes_of(cluster) if cluster else ()
    return [node.id for node in nodes] if job.compute.node_count == 1 else []


def _is_job(address: Address) -> bool:
    return address.kind is Kind.JOB


def _newest(recorded: Recorded | None) -> RunRecord | None:
    runs = runs_of(recorded)
    return runs[-1] if runs else None
