"""Looking after the caches of weights that a cluster's nodes have: verifying them, and evicting by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainctl.base.protocol.weights import (
    CACHE_EVICT,
    CACHE_VERIFY,
    CacheAnswer,
    CacheRow,
    EvictRequest,
)
from trainctl.errors import NodeError, StorageError, TrainctlError, UsageError
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address, Kind
from trainctl.model.reports import CachedListing, CacheReport
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import nodes_of
from trainctl.resources.node_cache import at
from trainctl.spi.provider import Node

_PARALLELISM = 10
Tell = Callable[[str, int, int], None]
"""Called with a node's id, bytes done and bytes in total, from several threads."""


@dataclass(frozen=True, slots=True)
class Which:
    """Which caches: a cluster by name, and of its nodes those named, all by default."""

    cluster: str
    nodes: tuple[str, ...] = ()


def evict(
    workspace: Workspace, which: Which, names: Sequence[str], *, dry_run: bool = False
) -> CacheReport:
    """Evict listings, by id or as the weights that they are of, or all; what live runs lease stays."""
    state = workspace.ledger.state()
    listings = [_listing(state, name) for name in names] or None

    def ask(node: Node, cluster: Recorded) -> CacheAnswer:
        agent = workspace.agents.to_look(cluster.provider, node)
        where = at(node, cluster.cluster_spec)
        return agent.call(CACHE_EVICT, EvictRequest(**where, listings=listings, dry_run=dry_run))

    return _each(state, which, ask)


def verify(workspace: Workspace, which: Which, tell: Tell | None = None) -> CacheReport:
    """Hash everything in the caches; listings with wrong files are removed and fetched by the next delivery."""

    def ask(node: Node, cluster: Recorded) -> CacheAnswer:
        def on_event(event: Mapping[str, Any]) -> None:
            if tell is not None:
                tell(node.id, int(event["done"]), int(event["total"]))

        agent = workspace.agents.to_look(cluster.provider, node)
        return agent.call(CACHE_VERIFY, at(node, cluster.cluster_spec), on_event=on_event)

    return _each(workspace.ledger.state(), which, ask)


def _each(state: State, which: Which, ask: Callable[[Node, Recorded], CacheAnswer]) -> CacheReport:
    cluster = _cluster(state, which.cluster)

    def answer(node: Node) -> CacheAnswer | TrainctlError:
        try:
            return ask(node, cluster)
        except (NodeError, StorageError) as error:
            return error

    nodes = _nodes(cluster, which)
    with ThreadPoolExecutor(_PARALLELISM, thread_name_prefix="cache") as pool:
        asked = list(zip(nodes, pool.map(answer, nodes), strict=True))
    failed = [(node, error) for node, error in asked if isinstance(error, TrainctlError)]
    answers = [(node, found) for node, found in asked if not isinstance(found, TrainctlError)]
    if failed and not answers:
        raise failed[0][1]
    return CacheReport(
        tuple(_row(node, row) for node, found in answers for row in found["listings"]),
        sum(found["freed"] for _, found in answers),
        sum(found["bytes"] for _, found in answers),
        tuple((node.id, error.summary) for node, error in failed),
    )


def _row(node: Node, row: CacheRow) -> CachedListing:
    return CachedListing(
        node.id,
        row["id"],
        row["source"],
        row["files"],
        row["bytes"],
        row["outcome"],
        row.get("last_used"),
        tuple(row.get("leased_by", ())),
        tuple(row.get("wrong_files", ())),
        row.get("detail", ""),
    )


def _listing(state: State, name: str) -> str:
    if not name.startswith("weights."):
        return name
    try:
        recorded = state.resources.get(Address.parse(name))
    except ValueError as error:
        raise UsageError(str(error)) from None
    listing = recorded.outputs.get("listing") if recorded else None
    if not listing:
        known = sorted(str(one) for one in state.resources if one.kind is Kind.WEIGHTS)
        raise UsageError(
            f"{name} is not in the state", f"In the state: {', '.join(known) or 'no weights'}."
        )
    return str(listing)


def _cluster(state: State, text: str) -> Recorded:
    name = text.removeprefix("cluster.")
    found = {
        address.name: one
        for address, one in state.resources.items()
        if address.kind is Kind.CLUSTER
    }
    if name not in found:
        known = ", ".join(sorted(found)) or "no cluster"
        raise UsageError(f"cluster {name} is not in the state", f"In the state: {known}.")
    return found[name]


def _nodes(cluster: Recorded, which: Which) -> list[Node]:
    nodes = nodes_of(cluster)
    chosen = [node for node in nodes if {node.name, node.id} & set(which.nodes)]
    missing = set(which.nodes) - {name for node in chosen for name in (node.name, node.id)}
    if missing:
        raise UsageError(
            f"{cluster.address} has no node {min(missing)}",
            f"It has {', '.join(node.name for node in nodes)}.",
        )
    return chosen if which.nodes else list(nodes)
