"""Which way weights take to a node, why, how long that takes, and when it leads through the operator's machine."""

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
"""Bytes from which on it is worth a warning that they cross the operator's machine."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path as the contract names it, and the reason for it in words; none for the usual one."""

    path: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class RemoteNodes:
    """The nodes of a job that don't see the mirror's directory: how many can hand others what they have, whether some do so over TLS, and why others can't, by id."""

    count: int
    tls: bool = False
    cut_off: Mapping[str, str] = field(default_factory=dict)


def choose_route(tiers: TierFacts | None, facts: NodeFacts | None, far: RemoteNodes) -> Route:
    """How a node gets what it lacks, of those of its job."""
    if tiers is not None and tiers.node == tiers.total:
        return Route("none")
    way = _available_route(facts, far)
    limit = facts.max_rate if facts else None
    if not limit:
        return way
    return Route(way.path, "; ".join(filter(None, [way.why, _limited(limit)])))


def _limited(rate: int) -> str:
    return f"each node downloads at most {format_bytes(rate)} per second from the mirror (max_rate)"


def _available_route(facts: NodeFacts | None, far: RemoteNodes) -> Route:
    if facts is not None and facts.shared_cache:
        return Route(
            "shared-cache", "the nodes share a directory; one node downloads what is missing"
        )
    if facts is None or facts.near:
        on = facts.mirror_on if facts else ""
        return Route("mirror-to-node", f"the mirror is on {on}" if on else "")
    alone = far.cut_off.get(facts.id, "")
    if far.count > 1 and not alone:
        place = facts.mirror_on or "this machine"
        over = ", over TLS" if far.tls or facts.mirror_tls else ""
        return Route("peers", f"{far.count} nodes share one download{over}: {place} sends one copy")
    if facts.mirror_on:
        over = " over TLS" if facts.mirror_tls else ""
        why = f"{facts.mirror_on} serves the mirror{over}"
        return Route("mirror-to-node", "; ".join(filter(None, [why, alone])))
    why = f"{facts.id} has no access to the mirror's directory"
    return Route("through-client", "; ".join(filter(None, [why, alone])))


class Forecast(NamedTuple):
    """Seconds; None where a rate that matters was never measured."""

    whole: float | None
    """Over all hops, one after another."""
    last_hop: float | None
    """Of the delivery alone, from the mirror or from who passes it on."""


def forecast(tiers: TierFacts | None, path: str, facts: NodeFacts | None, sharing: int) -> Forecast:
    """How long weights take to a node.

    What comes from the mirror takes as long as the cluster's ``max_rate`` has it take, if that is longer, or all that is known;
    ``sharing`` nodes that pass it on to each other take it together.
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
    whole = None if into_mirror is None else round(into_mirror + onto_node, 1)
    return Forecast(whole, round(onto_node, 1))


def _seconds(count: int, rate: float | None) -> float | None:
    if not count:
        return 0.0
    return count / rate if rate else None


def relay_warnings(weights: Iterable[WeightsRow]) -> Iterator[Diagnostic]:
    """A warning for each weights of which much goes through the operator's machine into a mirror elsewhere."""
    for line in weights:
        size, address = line.bytes_through_client or 0, line.address
        if size > LARGE_TRANSFER_BYTES:
            yield warning(
                f"{format_bytes(size)} of {address} are transferred via this machine into the mirror",
                "The mirror can't download them itself: a bucket never can, and a host can't if the files are on this machine or need a token.",
                address=str(address),
                code="through-client",
            )


def client_transfer_warnings(lines: Iterable[DeliveryRow]) -> Iterator[Diagnostic]:
    """A warning for each job that sends much through the operator's machine: one copy to peers, one each to others.

    What another job has brought to a node isn't sent there again.
    """
    copies: dict[Address, dict[str, int]] = {}
    sent: set[tuple[str | None, str]] = set()
    for line in lines:
        if line.path in ("peers", "through-client") and line.tiers is not None:
            if line.node is not None and (line.node, line.content) in sent:
                continue
            sent.add((line.node, line.content))
            missing = line.tiers.missing
            of_job = copies.setdefault(line.job, {})
            before = of_job.get(line.content, 0)
            of_job[line.content] = (
                max(before, missing) if line.path == "peers" else before + missing
            )
    for job, weights in sorted(copies.items()):
        size = sum(weights.values())
        if size > LARGE_TRANSFER_BYTES:
            yield warning(
                f"{format_bytes(size)} of weights are transferred via this machine to the nodes of {job}",
                "The mirror is a local directory that the nodes can't access. Blobs that they already have are not sent again.",
                address=str(job),
                code="through-client",
            )
