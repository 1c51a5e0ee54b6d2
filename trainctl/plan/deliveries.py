"""Deliveries of weights to new runs: routes, forecasts, disk space, and their problems."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.units import format_bytes
from trainctl.model.action import ActionReason
from trainctl.model.address import Address
from trainctl.model.delivery import HOPS, isolated_hosts
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.placement import rank_placements, starting_changes
from trainctl.plan.quarantine import quarantine_error
from trainctl.plan.values import (
    Change,
    DeliveryRow,
    NodeFacts,
    PlanInputs,
    TierFacts,
    WeightsRow,
)
from trainctl.plan.weights import content_key, expected_tiers

LARGE_TRANSFER_BYTES = 10**9
"""Warn if more bytes than this are transferred through the client."""


@dataclass(frozen=True, slots=True)
class RemoteNodes:
    """Nodes of a job without access to the mirror's directory.

    ``count``: nodes that can serve others; ``tls``: whether over TLS; ``isolated``: reasons of the others by node id.
    """

    count: int
    tls: bool = False
    isolated: Mapping[str, str] = field(default_factory=dict)


def choose_route(
    tiers: TierFacts | None, facts: NodeFacts | None, remote: RemoteNodes
) -> tuple[str, str]:
    """Return the route of missing bytes to a node, as in plan JSON, and the reason: empty for the default."""
    if tiers is not None and tiers.node == tiers.total:
        return "none", ""
    over = " over TLS" if facts and facts.mirror.tls else ""
    isolated = remote.isolated.get(facts.id, "") if facts else ""
    if facts is not None and "shared" in facts.cache:
        path, why = (
            "shared-cache",
            ["the nodes share a directory; one node downloads what is missing"],
        )
    elif facts is None or facts.mirror.sees:
        path = "mirror-to-node"
        why = [f"the mirror is on {facts.mirror.host}" if facts and facts.mirror.host else ""]
    elif remote.count > 1 and not isolated:
        sender = facts.mirror.host or "this machine"
        secured = ", over TLS" if remote.tls or over else ""
        path = "peers"
        why = [f"{remote.count} nodes share one download{secured}: {sender} sends one copy"]
    elif facts.mirror.host:
        path, why = "mirror-to-node", [f"{facts.mirror.host} serves the mirror{over}", isolated]
    else:
        path = "through-client"
        why = [f"{facts.id} has no access to the mirror's directory", isolated]
    if facts and facts.max_rate:
        rate = format_bytes(facts.max_rate)
        why.append(f"each node downloads at most {rate} per second from the mirror (max_rate)")
    return path, "; ".join(filter(None, why))


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


WAITING_FOR_SPACE = "waiting-for-disk-space"
"""Code of the warning that a run waits until live runs release disk space."""

_ASK_AGAIN = "Run it again when other runs have ended."
_RESUME_HINT = (
    "It starts with trainctl reconcile, apply --wait or a later apply, when other runs have ended."
)

RowsByContent = Mapping[str, DeliveryRow]
"""Deliveries of a job to a node by content: equal weights are stored once."""


def available_space(facts: NodeFacts) -> int:
    """Return the bytes available for weights on a node."""
    space = facts.cached.get("room")
    if space is None:
        space = facts.reported["disk_free"]
    return sys.maxsize if space is None else space


def _space_problems(
    facts: NodeFacts, jobs: Mapping[Address, RowsByContent], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """Report weights that never fit on a node (error) or must wait (warning)."""
    demands = {job: _cache_demand(facts, rows.values()) for job, rows in jobs.items()}
    tight = {job: demand for job, demand in demands.items() if demand > available_space(facts)}
    for job, demand in sorted(tight.items()):
        has, needs = _space_text(facts), format_bytes(demand)
        total = sum(row.tiers.total for row in jobs[job].values() if row.tiers)
        most = facts.cached.get("most")
        if most is None or total > most:  # it doesn't fit without other runs, either
            yield error(
                f"{has} but needs {needs} for weights",
                f"Free disk space there, {_enlarge_hint(facts)}, or narrow allow_patterns. Weights that no live run uses are evicted automatically.",
                address=str(job),
                code="insufficient-disk-space",
            )
        elif changes[job].stops is None:  # otherwise the stopped run releases its space
            by_request = changes[job].reason is ActionReason.BY_REQUEST
            yield warning(
                f"{has} in addition to live runs, but needs {needs} for weights: the job waits",
                f"{_ASK_AGAIN if by_request else _RESUME_HINT} To run both at the same time, {_enlarge_hint(facts)}.",
                address=str(job),
                code=WAITING_FOR_SPACE,
            )
    all_rows = {content: row for rows in jobs.values() for content, row in rows.items()}
    together = _cache_demand(facts, all_rows.values())
    if not tight and together > available_space(facts):
        has, needs = _space_text(facts), format_bytes(together)
        yield warning(
            f"{has} for weights, but needs {needs} to run all jobs at the same time",
            f"Affected jobs: {', '.join(sorted(map(str, jobs)))}. Jobs that don't fit wait. {_RESUME_HINT}",
            address=str(min(jobs)),
            code="insufficient-disk-space",
        )


def _cache_demand(facts: NodeFacts, rows: Iterable[DeliveryRow]) -> int:
    """Return the bytes that deliveries need; blobs of live runs can't be evicted."""
    claims = {} if facts.cached.get("room") is None else facts.claims
    return sum(claims.get(row.weights, row.tiers.missing if row.tiers else 0) for row in rows)


def _space_text(facts: NodeFacts) -> str:
    limit = "" if facts.limit is None else f" of {format_bytes(facts.limit)}"
    return f"{facts.id} has {format_bytes(available_space(facts))}{limit} free"


def _enlarge_hint(facts: NodeFacts) -> str:
    limit = "" if facts.limit is None else ", raise cache.node.size"
    return f"use a larger disk for the node cache{limit}"


def delivery_rows(
    inputs: PlanInputs, changes: Iterable[Change], weights: Iterable[WeightsRow]
) -> tuple[DeliveryRow, ...]:
    """Return a row for each new run, rank and weights."""
    weights_by_address = {row.address: row for row in weights}
    sources = {
        address: content_key(facts.resolved)
        for address, facts in inputs.weights.items()
        if facts.resolved
    }
    rows: list[DeliveryRow] = []
    for job in starting_changes(changes):
        placements = list(rank_placements(inputs, job))
        known = [placement.facts for placement in placements if placement.facts]
        local = sum(1 for facts in known if facts.mirror.host and facts.mirror.sees)
        count = job.job_spec.compute.node_count - local
        serving = {facts.id: facts.serving for facts in known if not facts.mirror.sees}
        isolated = isolated_hosts(serving) if count > 1 else {}
        tls = any(capability.tls for capability in serving.values())
        remote = RemoteNodes(count - len(isolated), tls, isolated)
        for rank, node, facts in placements:
            mount = facts.reported["mount"] if facts else ""
            mount = "container" if job.job_spec.in_container else mount
            for item in job.job_spec.weights:
                row = weights_by_address.get(item.address)
                tiers = expected_tiers(row) if row else None
                tiers = facts.tiers.get(item.address, tiers) if facts else tiers
                path, why = choose_route(tiers, facts, remote)
                sharing = remote.count if path == "peers" else job.job_spec.compute.node_count
                total, last_hop = forecast(tiers, path, facts, sharing)
                rows.append(
                    DeliveryRow(
                        job=job.address,
                        rank=rank,
                        node=node,
                        weights=item.address,
                        tiers=tiers,
                        path=path,
                        mount=mount,
                        mount_location=item.mount_location,
                        forecast_seconds=total,
                        why=why,
                        weights_space=available_space(facts) if facts else None,
                        last_hop_seconds=last_hop,
                        source=sources.get(item.address, ""),
                    )
                )
    return tuple(rows)


def delivery_problems(
    inputs: PlanInputs, changes: Iterable[Change], rows: Iterable[DeliveryRow]
) -> Iterator[Diagnostic]:
    """Report impossible mounts, missing disk space and missing nodes."""
    facts = {node.id: node for nodes in inputs.nodes.values() for node in nodes}
    changes = starting_changes(changes)
    for job in changes:
        yield from _too_few_nodes(inputs, job)
        yield from _impossible_mounts(inputs, job)
    rows = tuple(rows)
    by_address = {job.address: job for job in changes}
    needs: dict[str, dict[Address, dict[str, DeliveryRow]]] = {}
    for row in rows:
        if row.node in facts and row.tiers is not None:
            needs.setdefault(row.node, {}).setdefault(row.job, {})[row.content] = row
    for node_id, of_jobs in sorted(needs.items()):
        yield from _space_problems(facts[node_id], of_jobs, by_address)
    on_host = {node.id for node in facts.values() if node.mirror.host}
    from_client = [row for row in rows if row.node not in on_host]
    yield from client_transfer_warnings(from_client)
    nodes = ((row, facts.get(row.node or "")) for row in rows if row.path != "none")
    unserved = {row.job: node for row, node in nodes if node and node.mirror.unserved_reason}
    for address, node in sorted(unserved.items(), key=lambda item: item[0]):
        yield error(
            f"{node.id} cannot download its weights from {node.mirror.host}: {node.mirror.unserved_reason}",
            "Give the node an address that others can reach, in a private network or with a Python that has TLS (`python:`). Or change the mirror: {url: node://CLUSTER/DIRECTORY}, or on this machine: {url: file:///DIRECTORY}.",
            address=str(address),
            code="private-address-missing",
        )


def _too_few_nodes(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    cluster, count = job.job_spec.cluster_address, job.job_spec.compute.node_count
    nodes = None if cluster in inputs.scheduled else inputs.planned_nodes.get(cluster)
    ids = {node.id for node in inputs.planned_nodes.get(cluster, ())}
    barred = {node: reason for node, reason in inputs.quarantined.items() if node in ids}
    if nodes is not None and count > len(nodes):
        have = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
        yield error(
            f"{job.address} needs {count} nodes, but {cluster} has {have}",
            f"Lower compute.node_count, or add nodes to {cluster}.",
            address=str(job.address),
            code="too-few-nodes",
        )
    elif barred and count > len(nodes or ()) - len(barred):
        problem = quarantine_error(job.address, count, *next(iter(barred.items())))
        yield error(problem.summary, problem.detail, address=str(job.address), code=problem.code)
    elif nodes and len(inputs.rank_placements.get(job.address, ())) < count:
        reachable = {facts.id for facts in inputs.nodes.get(cluster, ())}
        unreachable = [node.id for node in nodes if node.id not in reachable]
        if reachable and unreachable:
            yield warning(
                f"{job.address} will wait: it needs {count} nodes, and {', '.join(unreachable)} can't be reached",
                "Apply again when the nodes are reachable.",
                address=str(job.address),
                code="waiting-for-node",
            )


def _impossible_mounts(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    locations = [] if job.job_spec.in_container else job.job_spec.mount_locations
    absolute = sorted({location for location in locations if location.startswith("/")})
    facts = (placement.facts for placement in rank_placements(inputs, job))
    node = next((node for node in facts if node and node.reported["mount"] == "link"), None)
    if not absolute or node is None:
        return
    reasons = "; ".join(f"{item['path']}: {item['why']}" for item in node.reported["blocked"])
    why = f" ({reasons})" if reasons else ""
    relative = f"weights/{absolute[0].rstrip('/').rpartition('/')[2]}"
    yield error(
        f"{', '.join(absolute)} cannot be created on {node.id}{why}",
        f"{node.id} doesn't support private mounts. Use a relative mount_location, such as {relative}, or enable user namespaces on the node.",
        address=str(job.address),
        code="impossible-mount",
    )
