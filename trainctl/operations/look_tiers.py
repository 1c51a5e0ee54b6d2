"""Where a node finds the bytes of weights, and how many of them no live run has there; what is asked and answered of very many files is held nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainctl.base.packed import AS_TUPLE
from trainctl.base.protocol.rows import sent
from trainctl.base.protocol.verb import AtCache
from trainctl.base.protocol.weights import CACHE_ROWS, Cached, CacheQuery
from trainctl.model.address import Address
from trainctl.plan.values import TierFacts
from trainctl.remote.agent import NodeAgent
from trainctl.resources.run_control import LOOK_SECONDS
from trainctl.weights.mirror.known import Known, Row


class Counted(NamedTuple):
    """Bytes of weights: by where they are found first, and those that no live run has on the node."""

    tiers: TierFacts
    claim: int


class _There(NamedTuple):
    """What a node says of a content: whether it is here, a live run has it, the cluster's cache has it; of what isn't here the bytes that needn't come again, and those on the disk."""

    here: bool = False
    leased: bool = False
    shared: bool = False
    good: int = 0
    laid: int = 0


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """What is asked of one node's cache: ``where`` it is, and about which weights; ``mirror`` is the mirror's directory, if the node sees it."""

    where: AtCache
    weights: Mapping[Address, Known]
    mirror: str | None = None

    @property
    def request(self) -> CacheQuery:
        """All of it, but for the files of weights that have very many."""
        few = (known for known in self.weights.values() if not _is_long(known))
        return {
            **self.where,
            "listings": [known.listing for known in self.weights.values() if known.listing],
            "blobs": _digests(row for known in few for row in known.files),
            "room": bool(self.weights),
            "mirror": self.mirror,
        }

    def counted(self, agent: NodeAgent, answer: Cached) -> dict[Address, Counted]:
        """What the answer says, of each of the weights. Where that isn't all, the node is asked for the rest; NodeError."""
        return {
            address: self._long(agent, known, answer)
            if _is_long(known)
            else _counted(known, answer)
            for address, known in self.weights.items()
        }

    def _long(self, agent: NodeAgent, known: Known, answer: Cached) -> Counted:
        leases = answer.get("leases", ())
        in_tree, needed = known.listing in answer["trees"], known.listing in leases
        if in_tree and (needed or not leases):
            return Counted(TierFacts(node=known.size), 0 if needed else known.size)
        counting = _Counting(in_tree=in_tree)
        for row, arrived in _rows(known):
            if not row[0]:
                counting.add(row, arrived, _There())
        named = (one for one in _rows(known) if one[0][0])

        def on_event(event: Mapping[str, Any]) -> None:
            for there, one in zip(event["rows"], named, strict=False):
                counting.add(*one, _There(*there))

        if any(sha256 for sha256, _, _ in known.files):
            agent.call(
                CACHE_ROWS,
                self.where,
                following=sent([((sha256,) for sha256, _, _ in known.files if sha256)]),
                on_event=on_event,
                timeout=LOOK_SECONDS,
            )
        return counting.counted


class _Counting:
    """Each byte is counted where it is found first: on the node, in the cluster's cache, in the mirror, upstream."""

    def __init__(self, *, in_tree: bool) -> None:
        self._in_tree = in_tree
        self._node = self._cluster = self._mirror = self._upstream = self._claim = 0

    def add(self, row: Row, arrived: int, there: _There) -> None:
        """A file, how much of it has arrived in the mirror, and what the node said of it."""
        _, size, mirrored = row
        here = self._in_tree or there.here
        on_node = size if here else min(size, there.good)
        left = size - on_node
        in_mirror = left if mirrored else min(left, arrived)
        self._node += on_node
        if there.shared:
            self._cluster += left
        else:
            self._mirror += in_mirror
            self._upstream += left - in_mirror
        if not there.leased:
            self._claim += size
        elif not here:  # the run that leases it has as much of it as lies there
            self._claim += max(0, size - there.laid)

    @property
    def counted(self) -> Counted:
        """All of it."""
        tiers = TierFacts(self._node, self._cluster, self._mirror, self._upstream)
        return Counted(tiers, self._claim)


def _rows(known: Known) -> Iterator[tuple[Row, int]]:
    """Each file, and the bytes of it that have arrived in the mirror, which doesn't have it yet."""
    for place, row in enumerate(known.files):
        some = known.arrived.get(place)
        yield row, some.good if some else 0


def _is_long(known: Known) -> bool:
    return len(known.files) > AS_TUPLE


def _digests(rows: Iterable[Row]) -> list[str]:
    return sorted({sha256 for sha256, _, _ in rows if sha256})


def _counted(known: Known, cached: Cached) -> Counted:
    present, leased = frozenset(cached["blobs"]), frozenset(cached.get("leased", ()))
    shared, partly = frozenset(cached.get("shared", ())), cached.get("arrived", {})
    counting = _Counting(in_tree=known.listing in cached["trees"])
    for row, arrived in _rows(known):
        here, its, there = (row[0] in some for some in (present, leased, shared))
        counting.add(row, arrived, _There(here, its, there, *partly.get(row[0] or "", (0, 0))))
    return counting.counted
