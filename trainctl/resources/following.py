"""Runs that a job's next run has to wait for: on its own node its supervisor waits for them, elsewhere nobody can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainctl.apply.step import Lookup
from trainctl.errors import NodeError
from trainctl.ledger.state import Recorded
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.resources.agents import nodes_of
from trainctl.resources.run_control import RunControl, runs_of
from trainctl.spi.provider import Node


@dataclass(frozen=True, slots=True)
class Ahead:
    """What stands before a job: live runs on its node to follow, or why it can't be started yet."""

    follows: tuple[tuple[Address, RunRecord], ...] = ()
    why_not: str = ""


@dataclass
class _Found:
    follows: list[tuple[Address, RunRecord]] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)


def ahead(
    control: RunControl, lookup: Lookup, depends_on: Iterable[Address], node: Node | None
) -> Ahead:
    """What stands before a job whose next run would be on the node, as the nodes tell it now."""
    newest = {address: _newest(lookup(address)) for address in depends_on if _is_job(address)}
    live = [run for run in newest.values() if run is not None and run.status.live]
    now = control.statuses(live)
    found = _Found()
    for address, recorded in newest.items():
        run = now.get(recorded.key, recorded) if recorded else None
        if isinstance(run, NodeError):
            found.blockers.append(f"{address}: {run.summary}")
        elif run is None:
            found.blockers.append(f"{address} has not run")
        elif run.status.live and node and {rank.node for rank in run.ranks} == {node.id}:
            found.follows.append((address, run))
        elif run.status.live:
            where = ", ".join(rank.node for rank in run.ranks)
            found.blockers.append(f"run {run.number} of {address} goes on, on {where}")
        elif run.status is not RunStatus.COMPLETED:
            found.blockers.append(f"run {run.number} of {address}: {run.status.words}")
    if not found.blockers:
        return Ahead(tuple(found.follows))
    more = f", and {len(found.blockers) - 1} more" if len(found.blockers) > 1 else ""
    return Ahead(why_not=f"waits: {found.blockers[0]}{more}")


def seat(cluster: Recorded | None) -> Node | None:
    """The node that a run on a cluster gets."""
    nodes = nodes_of(cluster) if cluster else ()
    return nodes[0] if nodes else None


def _is_job(address: Address) -> bool:
    return address.kind is Kind.JOB


def _newest(recorded: Recorded | None) -> RunRecord | None:
    runs = runs_of(recorded)
    return runs[-1] if runs else None
