"""Where a node finds the bytes of weights, and how many of them no live run has there; asked some at a time where there are very many files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from trainctl.model.address import Address
from trainctl.node.content.packed import AS_TUPLE
from trainctl.plan.values import TierFacts
from trainctl.remote.agent import NodeAgent
from trainctl.resources.run_control import LOOK_SECONDS
from trainctl.weights.mirror.known import Known, Row

_ROWS_AT_ONCE = 50_000


class Counted(NamedTuple):
    """Bytes of weights: by where they are found first, and those that no live run has on the node."""

    tiers: TierFacts
    claim: int


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """What is asked of one node's cache: ``where`` it is, and about which weights."""

    where: Mapping[str, Any]
    weights: Mapping[Address, Known]

    @property
    def request(self) -> dict[str, Any]:
        """All of it, but for the files of weights that have very many."""
        few = (known for known in self.weights.values() if not _is_long(known))
        return {
            **self.where,
            "listings": [known.listing for known in self.weights.values() if known.listing],
            "blobs": _digests(row for known in few for row in known.files),
            "room": bool(self.weights),
        }

    def counted(self, agent: NodeAgent, answer: Mapping[str, Any]) -> dict[Address, Counted]:
        """What the answer says, of each of the weights. Where that isn't all, the node is asked for the rest; NodeError."""
        return {
            address: self._long(agent, known, answer)
            if _is_long(known)
            else _counted(known, known.files, answer)
            for address, known in self.weights.items()
        }

    def _long(self, agent: NodeAgent, known: Known, answer: Mapping[str, Any]) -> Counted:
        leases = answer.get("leases", ())
        in_tree, needed = known.listing in answer["trees"], known.listing in leases
        if in_tree and (needed or not leases):
            return Counted(TierFacts(node=known.size), 0 if needed else known.size)
        counts = [
            _counted(known, some, {"trees": answer["trees"], **self._ask(agent, some)})
            for some in _some_at_a_time(known.files)
        ]
        tiers = [one.tiers for one in counts]
        return Counted(
            TierFacts(
                sum(one.node for one in tiers),
                sum(one.cluster for one in tiers),
                sum(one.mirror for one in tiers),
                sum(one.upstream for one in tiers),
            ),
            sum(one.claim for one in counts),
        )

    def _ask(self, agent: NodeAgent, rows: Iterable[Row]) -> Mapping[str, Any]:
        blobs = _digests(rows)
        if not blobs:
            return {"blobs": ()}
        request = {**self.where, "blobs": blobs, "leased": True}
        found = agent.call("cache_query", request, timeout=LOOK_SECONDS)
        return {name: found[name] for name in ("blobs", "leased", "shared") if name in found}


def _is_long(known: Known) -> bool:
    return len(known.files) > AS_TUPLE


def _digests(rows: Iterable[Row]) -> list[str]:
    return sorted({sha256 for sha256, _, _ in rows if sha256})


def _some_at_a_time(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield some


def _counted(known: Known, rows: Iterable[Row], cached: Mapping[str, Any]) -> Counted:
    """Each byte is counted where it is found first: on the node, in the cluster's cache, in the mirror, upstream."""
    present, leased = frozenset(cached["blobs"]), frozenset(cached.get("leased", ()))
    shared = frozenset(cached.get("shared", ()))
    in_tree = known.listing in cached["trees"]
    node = cluster = mirror = upstream = claim = 0
    for sha256, size, here in rows:
        if in_tree or sha256 in present:
            node += size
        elif sha256 in shared:
            cluster += size
        elif here:
            mirror += size
        else:
            upstream += size
        claim += 0 if sha256 in leased else size
    return Counted(TierFacts(node, cluster, mirror, upstream), claim)
