"""Delivery and mirroring of weights: records, mirror locations, serving hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.json_codec import JsonSerializable

NODE, CLUSTER, PEERS, MIRROR = "node", "cluster", "peers", "mirror"
"""Tiers that bytes come from: the node, the cluster's shared directory, other nodes, the mirror."""

THROUGH_CLIENT = "through-client"
"""Route through the client, for nodes that can't reach its mirror."""

HOPS = {
    "mirror-to-node": "mirror",
    THROUGH_CLIENT: "client",
    "peers": "peers",
    "shared-cache": "cluster",
}
"""The last hop of each route, under which transfer rates are recorded."""


@dataclass(frozen=True, slots=True)
class TransferForecast:
    """Forecast of one delivery, without mirroring; None means unknown."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MirroringRecord(JsonSerializable):
    """Record of one mirroring; ``bytes`` were missing in the mirror before.

    ``bytes_through_client``: bytes that the client copied to a remote mirror, including bytes read twice.
    """

    bytes: int
    seconds: float
    bytes_through_client: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryRecord(JsonSerializable):
    """Record of one delivery: the weights of one rank.

    ``bytes_by_tier`` adds up to the size of the listing; ``path`` is a route as in plans; ``forecast_seconds`` is
    the plan's forecast without mirroring.
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
        """Build a record from the node program's response; ``path`` is the planned route."""
        tiers = {
            NODE: int(answer["bytes_node"]),
            CLUSTER: int(answer.get("bytes_cluster", 0)),
            PEERS: int(answer.get("bytes_peers", 0)),
            MIRROR: int(answer["bytes_mirror"]),
        }
        path = path if sum(tiers.values()) > tiers[NODE] else "none"
        return cls(rank, node, weights, path, float(answer["seconds"]), tiers)

    @property
    def moved(self) -> int:
        """Bytes that were not on the node."""
        return sum(self.bytes_by_tier.values()) - self.bytes_by_tier.get(NODE, 0)


@dataclass(frozen=True)
class MirrorSite:
    """Location of a mirror: URL and, for buckets, the manifest's endpoint URL.

    ``endpoint`` has no trailing ``/``. Endpoints from the environment are not included: users may reach the same
    store by different names.
    """

    url: str
    endpoint: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url

    def differs_from(self, before: MirrorSite) -> bool:
        """Whether a mirror at ``before`` has moved here.

        A ``node://`` URL without directory means the host's default directory, so any directory of the host matches.
        """
        if self.scheme == "node" and self.url.count("/") == 2:
            return not before.url.startswith(f"{self.url}/")
        return self != before

    @property
    def outputs(self) -> dict[str, str]:
        """Outputs to record for weights in this mirror."""
        return {"mirror": self.url, "mirror_endpoint": self.endpoint}

    @property
    def scheme(self) -> str:
        """URL scheme."""
        return self.url.partition("://")[0]

    def of(self, outputs: Mapping[str, Any]) -> MirrorSite:
        """Location of recorded weights; this mirror if none is recorded."""
        url = outputs.get("mirror")
        return MirrorSite(str(url), str(outputs.get("mirror_endpoint", ""))) if url else self


@dataclass(frozen=True)
class ServingCapability:
    """Whether a host can serve weights to other hosts; ``why`` not, if it can't.

    ``tls``: required because its most likely address is not private. Hosts with the same ``loopback``, a network
    name, always reach each other.
    """

    tls: bool = False
    why: str = ""
    loopback: str = ""

    def blocked_reason(self, other: ServingCapability) -> str:
        """Reason why this host can't serve the other, empty if it can."""
        return "" if self.loopback and self.loopback == other.loopback else self.why


SERVES_ALL = ServingCapability()


def isolated_hosts(hosts: Mapping[str, ServingCapability]) -> dict[str, str]:
    """Return the hosts that can't serve any other host, with the reason."""
    return {
        name: host.why
        for name, host in hosts.items()
        if host.why
        and all(host.blocked_reason(other) for peer, other in hosts.items() if peer != name)
    }
