"""Routes of weights to nodes, their forecasts, and warnings about large transfers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainctl.base.units import format_bytes
from trainctl.model.address import Address
from trainctl.model.delivery import HOPS
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.plan.values import DeliveryRow, NodeFacts, TierFacts, WeightsRow

LARGE_TRANSFER_BYTES = 10**9
"""Warn if more bytes than this are transferred through the client."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route as in plan JSON and the reason for it, empty for the default."""

    path: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class RemoteNodes:
    """Nodes of a job without access to the mirror's directory.

    ``count``: nodes that can serve others; ``tls``: whether over TLS; ``isolated``: reasons of the others by node id.
    """

    count: int
    tls: bool = False
    isolated: Mapping[str, str] = field(default_factory=dict)


def choose_route(tiers: TierFacts | None, facts: NodeFacts | None, remote: RemoteNodes) -> Route:
    """Choose the route of missing bytes to a node."""
    if tiers is not None and tiers.node == tiers.total:
        return Route("none")
    route = _available_route(facts, remote)
    if not facts or not facts.max_rate:
        return route
    rate = format_bytes(facts.max_rate)
    limit = f"each node downloads at most {rate} per second from the mirror (max_rate)"
    return Route(route.path, "; ".join(filter(None, [route.why, limit])))


def _available_route(facts: NodeFacts | None, remote: RemoteNodes) -> Route:
    if facts is not None and "shared" in facts.cache:
        return Route(
            "shared-cache", "the nodes share a directory; one node downloads what is missing"
        )
    if facts is None or facts.mirror.sees:
        host = facts.mirror.host if facts else ""
        return Route("mirror-to-node", f"the mirror is on {host}" if host else "")
    isolated = remote.isolated.get(facts.id, "")
    if remote.count > 1 and not isolated:
        sender = facts.mirror.host or "this machine"
        over = ", over TLS" if remote.tls or facts.mirror.tls else ""
        return Route(
            "peers", f"{remote.count} nodes share one download{over}: {sender} sends one copy"
        )
    if facts.mirror.host:
        over = " over TLS" if facts.mirror.tls else ""
        why = f"{facts.mirror.host} serves the mirror{over}"
        return Route("mirror-to-node", "; ".join(filter(None, [why, isolated])))
    why = f"{facts.id} has no access to the mirror's directory"
    return Route("through-client", "; ".join(filter(None, [why, isolated])))


class Forecast(NamedTuple):
    """Seconds of all hops together and of the last alone; None if no rate is recorded."""

    total: float | None
    last_hop: float | None


def forecast(tiers: TierFacts | None, path: str, facts: NodeFacts | None, sharing: int) -> Forecast:
    """Forecast the duration of a delivery.

    ``max_rate`` of the cluster is a lower bound, shared by the ``sharing`` nodes that pass blobs on to each other.
    """
    if tiers is None:
        return Forecast(None, None)
    rates = facts.rates if facts else {}
    last = tiers.missing if path != "none" else 0
    into_mirror = _seconds(tiers.upstream, rates.get("upstream"))
    onto_node = _seconds(last, rates.get(HOPS.get(path, "mirror")))
    if facts is not None and facts.max_rate:
        share = sharing if path in ("peers", "shared-cache") else 1
        limited = (tiers.mirror + tiers.upstream) / (facts.max_rate * share)
        onto_node = max(onto_node or 0.0, limited)
    if onto_node is None:
        return Forecast(None, None)
    total = None if into_mirror is None else round(into_mirror + onto_node, 1)
    return Forecast(total, round(onto_node, 1))


def _seconds(count: int, rate: float | None) -> float | None:
    if not count:
        return 0.0
    return count / rate if rate else None


def relay_warnings(weights: Iterable[WeightsRow]) -> Iterator[Diagnostic]:
    """Warn about large transfers through the client to a remote mirror."""
    for row in weights:
        size, address = row.bytes_through_client or 0, row.address
        if size > LARGE_TRANSFER_BYTES:
            yield warning(
                f"{format_bytes(size)} of {address} are transferred via this machine into the mirror",
                "The mirror can't download them itself: a bucket never can, and a host can't if the files are on this machine or need a token.",
                address=str(address),
                code="through-client",
            )


def client_transfer_warnings(rows: Iterable[DeliveryRow]) -> Iterator[Diagnostic]:
    """Warn about large transfers through the client to the nodes of a job.

    Peers get one copy, other nodes one each. Weights of several jobs are sent to a node once.
    """
    copies: dict[Address, dict[str, int]] = {}
    sent: set[tuple[str | None, str]] = set()
    for row in rows:
        if row.path in ("peers", "through-client") and row.tiers is not None:
            if row.node is not None and (row.node, row.content) in sent:
                continue
            sent.add((row.node, row.content))
            missing = row.tiers.missing
            of_job = copies.setdefault(row.job, {})
            before = of_job.get(row.content, 0)
            of_job[row.content] = max(before, missing) if row.path == "peers" else before + missing
    for job, weights in sorted(copies.items()):
        size = sum(weights.values())
        if size > LARGE_TRANSFER_BYTES:
            yield warning(
                f"{format_bytes(size)} of weights are transferred via this machine to the nodes of {job}",
                "The mirror is a local directory that the nodes can't access. Blobs that they already have are not sent again.",
                address=str(job),
                code="through-client",
            )
