"""Deliveries and mirrorings of weights, where a mirror is, and how hosts serve each other."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.model.json_codec import JsonSerializable

NODE, CLUSTER, PEERS, MIRROR = "node", "cluster", "peers", "mirror"
"""Where bytes were found: on the node, in the cluster's shared directory, on other nodes, in the mirror."""

THROUGH_CLIENT = "through-client"
"""The path from a mirror on the machine where trainctl runs to a node that doesn't see it."""

HOPS = {
    "mirror-to-node": "mirror",
    THROUGH_CLIENT: "client",
    "peers": "peers",
    "shared-cache": "cluster",
}
"""The last hop of each path: what its rate is recorded as."""


@dataclass(frozen=True, slots=True)
class TransferForecast:
    """What a plan says of one delivery, without mirroring: how long it takes, and how many bytes have to come. None where it can't tell."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MirroringRecord(JsonSerializable):
    """One mirroring. ``bytes`` were missing in the mirror when it began; ``bytes_through_client`` went through the machine where trainctl
    ran into a mirror elsewhere, those that had to be read twice counted twice.
    """

    bytes: int
    seconds: float
    bytes_through_client: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryRecord(JsonSerializable):
    """One rank's weights. ``bytes_by_tier`` adds up to the listing's size; ``path`` is one of those in plans.

    ``forecast_seconds`` is what the plan said of it, without mirroring, if it could; ``bytes_through_client`` went through the machine where trainctl ran.
    """

    rank: int
    node: str
    weights: str
    path: str
    seconds: float
    bytes_by_tier: Mapping[str, int] = field(default_factory=dict)
    forecast_seconds: float | None = None
    bytes_through_client: int = 0

    @classmethod
    def of(
        cls, rank: int, node: str, weights: str, answer: Mapping[str, Any], path: str
    ) -> DeliveryRecord:
        """From what the node program answers. ``path``: the way that was open, had there been anything to move."""
        tiers = {
            NODE: int(answer["bytes_node"]),
            CLUSTER: int(answer.get("bytes_cluster", 0)),
            PEERS: int(answer.get("bytes_peers", 0)),
            MIRROR: int(answer["bytes_origin"]),
        }
        path = path if sum(tiers.values()) > tiers[NODE] else "none"
        return cls(rank, node, weights, path, float(answer["seconds"]), tiers)

    @property
    def moved(self) -> int:
        """The bytes that were not on the node."""
        return sum(self.bytes_by_tier.values()) - self.bytes_by_tier.get(NODE, 0)


@dataclass(frozen=True)
class MirrorSite:
    """A mirror's URL, and of a bucket the server that the manifest names, without its last ``/``; empty where it names none.

    What the *environment* names is not part of it, as people reach the same store by other names.
    """

    url: str
    endpoint: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url

    def differs_from(self, before: MirrorSite) -> bool:
        """Whether a mirror that was there has moved. A URL of a host without a directory is that of its usual one, which only the host tells."""
        if self.scheme == "node" and self.url.count("/") == 2:
            return not before.url.startswith(f"{self.url}/")
        return self != before

    @property
    def options(self) -> str:
        """How a command line names it."""
        endpoint = ("--endpoint-url", self.endpoint) if self.endpoint else ()
        return shlex.join(["--url", self.url, *endpoint])

    @property
    def outputs(self) -> dict[str, str]:
        """What is recorded of weights that are there."""
        return {"mirror": self.url, "mirror_endpoint": self.endpoint}

    @property
    def scheme(self) -> str:
        """What kind of place it is."""
        return self.url.partition("://")[0]

    def of(self, outputs: Mapping[str, Any]) -> MirrorSite:
        """Where recorded weights are, this being where they are to be. Where no server was recorded, as by earlier releases, it was the same."""
        there = MirrorSite(str(outputs.get("mirror") or self.url))
        same = self.endpoint if there.scheme == self.scheme else ""
        return MirrorSite(there.url, str(outputs.get("mirror_endpoint", same)))


@dataclass(frozen=True)
class ServingCapability:
    """How a host can serve weights to others: over ``tls`` if its likeliest address isn't private; ``why`` not, if it can't.

    Hosts with the same ``loopback``, the name of a network, reach each other in any case.
    """

    tls: bool = False
    why: str = ""
    loopback: str = ""

    def blocked_reason(self, other: ServingCapability) -> str:
        """Why this host can't serve that one; empty if it can."""
        return "" if self.loopback and self.loopback == other.loopback else self.why


SERVES_ALL = ServingCapability()
"""The default."""


def isolated_hosts(hosts: Mapping[str, ServingCapability]) -> dict[str, str]:
    """The hosts that can't serve any other host, each with the reason."""
    return {
        name: one.why
        for name, one in hosts.items()
        if all(one.blocked_reason(other) for them, other in hosts.items() if them != name)
        and one.why
    }
