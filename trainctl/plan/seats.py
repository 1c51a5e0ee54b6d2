"""Which runs start, and on which node each of their ranks will be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.plan.runs import node_count
from trainctl.plan.values import Change, Inputs, NodeFacts

NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank will run: the node's id, and what the node said of itself if it could be asked."""

    rank: int
    node: str | None
    facts: NodeFacts | None


def starting(changes: Iterable[Change]) -> list[Change]:
    """The changes that start a run, by address."""
    found = [c for c in changes if c.address.kind is Kind.JOB and c.action in NEW_RUN]
    return sorted(found, key=lambda change: change.address)


def seats(inputs: Inputs, job: Change) -> Iterator[Seat]:
    """The nodes of a job by rank: the cluster's in its order."""
    after = job.after or {}
    cluster = Address(Kind.CLUSTER, str(after.get("cluster")))
    names = inputs.node_names.get(cluster, ())
    asked = inputs.nodes.get(cluster, ())
    by_id = {facts.id: facts for facts in asked}
    for rank in range(node_count(after.get("compute"))):
        if rank < len(names):
            node = f"{cluster.name}/{names[rank]}"
            yield Seat(rank, node, by_id.get(node))
        elif not names and rank < len(asked):
            yield Seat(rank, asked[rank].id, asked[rank])
        else:
            yield Seat(rank, None, None)
