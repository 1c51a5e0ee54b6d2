"""What a delivery was: which way the bytes of some weights took to a node, how many, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.model.json_form import from_json, to_json

NODE, CLUSTER, PEERS, MIRROR = "node", "cluster", "peers", "mirror"
"""Where bytes were found: on the node, in the cluster's shared directory, on other nodes, in the mirror."""

THROUGH_OPERATOR = "through-operator"
"""The path from a mirror on the machine where trainctl runs to a node that doesn't see it."""

HOPS = {
    "mirror-to-node": "mirror",
    THROUGH_OPERATOR: "operator",
    "peers": "peers",
    "shared-cache": "cluster",
}
"""The last hop of each path: what its rate is recorded as."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a plan says of one delivery, without mirroring: how long it takes, and how many bytes have to come. None where it can't tell."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Mirrored:
    """One mirroring. ``bytes`` were missing in the mirror when it began; ``bytes_through_operator`` went through the machine where trainctl
    ran into a mirror elsewhere, those that had to be read twice counted twice.
    """

    bytes: int
    seconds: float
    bytes_through_operator: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Mirrored:
        """Read what ``to_json`` wrote."""
        return from_json(cls, value)

    def to_json(self) -> dict[str, Any]:
        """The form kept in the state."""
        found: dict[str, Any] = to_json(self)
        return found


@dataclass(frozen=True, slots=True)
class Delivered:
    """One rank's weights. ``bytes_by_tier`` adds up to the listing's size; ``path`` is one of those in plans.

    ``forecast_seconds`` is what the plan said of it, without mirroring, if it could; ``bytes_through_operator`` went through the machine where trainctl ran.
    """

    rank: int
    node: str
    weights: str
    path: str
    seconds: float
    bytes_by_tier: Mapping[str, int] = field(default_factory=dict)
    forecast_seconds: float | None = None
    bytes_through_operator: int = 0

    @classmethod
    def of(
        cls, rank: int, node: str, weights: str, answer: Mapping[str, Any], path: str
    ) -> Delivered:
        """From what the node program answers. ``path``: the way that was open, had there been anything to move."""
        tiers = {
            NODE: int(answer["bytes_node"]),
            CLUSTER: int(answer.get("bytes_cluster", 0)),
            PEERS: int(answer.get("bytes_peers", 0)),
            MIRROR: int(answer["bytes_origin"]),
        }
        path = path if sum(tiers.values()) > tiers[NODE] else "none"
        return cls(rank, node, weights, path, float(answer["seconds"]), tiers)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Delivered:
        """Read what ``to_json`` wrote."""
        return from_json(cls, value)

    @property
    def moved(self) -> int:
        """The bytes that were not on the node."""
        return sum(self.bytes_by_tier.values()) - self.bytes_by_tier.get(NODE, 0)

    def to_json(self) -> dict[str, Any]:
        """The form kept in the state."""
        found: dict[str, Any] = to_json(self)
        return found
