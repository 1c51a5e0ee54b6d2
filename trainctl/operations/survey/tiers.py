"""Where the bytes of weights are for a node, and how many of them no live run has there."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from trainctl.base.protocol.method import NodeCacheRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.model.address import Address
from trainctl.plan.values import TierFacts
from trainctl.store.maintenance.survey import SourceSurvey


class TierCount(NamedTuple):
    """Bytes of weights: by the nearest place where they are, and those that no live run has on the node."""

    tiers: TierFacts
    claim: int


@dataclass(frozen=True, slots=True)
class TierQuery:
    """What is asked of a node: of the cache at ``where``, about weights."""

    where: NodeCacheRequest
    weights: Mapping[Address, SourceSurvey]

    @property
    def request(self) -> CacheQueryRequest:
        """The request."""
        rows = (row for survey in self.weights.values() for row in survey.files)
        return {
            **self.where,
            "listings": [survey.listing for survey in self.weights.values() if survey.listing],
            "blobs": sorted({sha256 for sha256, _, _ in rows if sha256}),
            "room": bool(self.weights),
        }

    def counted(self, answer: CacheQueryResponse) -> dict[Address, TierCount]:
        """What the answer says of each of the weights."""
        present, leased = frozenset(answer["blobs"]), frozenset(answer.get("leased", ()))
        shared = frozenset(answer.get("shared", ()))
        return {
            address: _count_tiers(
                survey, survey.listing in answer["trees"], present, leased, shared
            )
            for address, survey in self.weights.items()
        }


def _count_tiers(
    survey: SourceSurvey,
    in_tree: bool,
    present: Set[str | None],
    leased: Set[str | None],
    shared: Set[str | None],
) -> TierCount:
    """Count each file where it is nearest: on the node, in the cluster's cache, in the mirror, upstream."""
    tiers = {"node": 0, "cluster": 0, "mirror": 0, "upstream": 0}
    claim = 0
    for sha256, size, mirrored in survey.files:
        here = in_tree or sha256 in present
        place = "mirror" if mirrored else "upstream"
        tiers["node" if here else "cluster" if sha256 in shared else place] += size
        if not (here and sha256 in leased):
            claim += size
    return TierCount(TierFacts(**tiers), claim)
