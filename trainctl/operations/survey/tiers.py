"""Where the bytes of weights are for a node, and how many of them no live run has there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainctl.base.protocol.verb import AtCache
from trainctl.base.protocol.weights import CACHE_QUERY, Cached, CacheQuery
from trainctl.model.address import Address
from trainctl.plan.values import TierFacts
from trainctl.remote.agent import NodeAgent
from trainctl.resources.run_control import LOOK_SECONDS
from trainctl.store.survey import Row, SourceSurvey

_MANY_FILES = 100_000
"""About more files a node is asked in several requests, not in the first one."""


class Counted(NamedTuple):
    """Bytes of weights: by the nearest place where they are, and those that no live run has on the node."""

    tiers: TierFacts
    claim: int


class _There(NamedTuple):
    """Whether content is on the node, whether a live run there needs it, and whether the cluster's cache has it."""

    here: bool = False
    leased: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """What is asked of a node: of the cache at ``where``, about weights."""

    where: AtCache
    weights: Mapping[Address, SourceSurvey]

    @property
    def request(self) -> CacheQuery:
        """The request, without the files of weights that have very many."""
        few = (survey for survey in self.weights.values() if not _is_long(survey))
        return {
            **self.where,
            "listings": [survey.listing for survey in self.weights.values() if survey.listing],
            "blobs": _digests(row for survey in few for row in survey.files),
            "room": bool(self.weights),
        }

    def counted(self, agent: NodeAgent, answer: Cached) -> dict[Address, Counted]:
        """What the answer says of each of the weights; the node is asked again about very many files. May raise NodeError."""
        return {
            address: self._long(agent, survey, answer)
            if _is_long(survey)
            else _counted(survey, answer)
            for address, survey in self.weights.items()
        }

    def _long(self, agent: NodeAgent, survey: SourceSurvey, answer: Cached) -> Counted:
        """Ask about the files of weights that have very many, some at a time."""
        leases = answer.get("leases", ())
        is_in_tree, is_leased = survey.listing in answer["trees"], survey.listing in leases
        if is_in_tree and (is_leased or not leases):
            return Counted(TierFacts(node=survey.size), 0 if is_leased else survey.size)
        counting = _Counting(in_tree=is_in_tree)
        for start in range(0, len(survey.files), _MANY_FILES):
            rows = survey.files[start : start + _MANY_FILES]
            request: CacheQuery = {**self.request, "listings": [], "blobs": _digests(rows)}
            counting.add_all(rows, agent.call(CACHE_QUERY, request, timeout=LOOK_SECONDS))
        return counting.counted


class _Counting:
    """Counts each file where it is nearest: on the node, in the cluster's cache, in the mirror, upstream."""

    def __init__(self, *, in_tree: bool) -> None:
        self._in_tree = in_tree
        self._node = self._cluster = self._mirror = self._upstream = self._claim = 0

    def add(self, row: Row, there: _There) -> None:
        """Count a file, by what the node says of it."""
        _, size, mirrored = row
        here = self._in_tree or there.here
        if here:
            self._node += size
        elif there.shared:
            self._cluster += size
        elif mirrored:
            self._mirror += size
        else:
            self._upstream += size
        if not (there.leased and here):
            self._claim += size

    def add_all(self, rows: Iterable[Row], answer: Cached) -> None:
        """Count files, by a node's answer about them."""
        present, leased = frozenset(answer["blobs"]), frozenset(answer.get("leased", ()))
        shared = frozenset(answer.get("shared", ()))
        for row in rows:
            self.add(row, _There(row[0] in present, row[0] in leased, row[0] in shared))

    @property
    def counted(self) -> Counted:
        """All of it."""
        tiers = TierFacts(self._node, self._cluster, self._mirror, self._upstream)
        return Counted(tiers, self._claim)


def _is_long(survey: SourceSurvey) -> bool:
    return len(survey.files) > _MANY_FILES


def _digests(rows: Iterable[Row]) -> list[str]:
    return sorted({sha256 for sha256, _, _ in rows if sha256})


def _counted(survey: SourceSurvey, answer: Cached) -> Counted:
    counting = _Counting(in_tree=survey.listing in answer["trees"])
    counting.add_all(survey.files, answer)
    return counting.counted
