"""Looking after the caches of weights that a cluster's nodes have: verifying them, and evicting by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainctl.errors import NodeError, StorageError, TrainctlError, UsageError
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address, Kind
from trainctl.model.node_cache import CachedListing, CacheReport
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
    more = {"listings": listings, "dry_run": dry_run}
    return _each(workspace, state, which, "cache_evict", more)


def verify(workspace: Workspace, which: Which, tell: Tell | None = None) -> CacheReport:
    """Hash everything in the caches; listings with wrong files are removed and fetched by the next delivery."""
    return _each(workspace, workspace.ledger.state(), which, "cache_verify", {}, tell)


def _each(
    workspace: Workspace,
    state: State,
    which: Which,
    verb: str,
    more: Mapping[str, Any],
    tell: Tell | None = None,
) -> CacheReport:
    cluster = _cluster(state, which.cluster)

    def ask(node: Node) -> dict[str, Any] | TrainctlError:
        def on_event(event: Mapping[str, Any]) -> None:
            if tell is not None:
                tell(node.id, int(event["done"]), int(event["total"]))

        agent = workspace.agents.to_look(cluster.provider, node)
        request = {**at(node, cluster.attributes), **more}
        try:
            return agent.call(verb, request, on_event=on_event)
        except (NodeError, StorageError) as error:
            return error

    nodes = _nodes(cluster, which)
    with ThreadPoolExecutor(_PARALLELISM, thread_name_prefix="cache") as pool:
        asked = list(zip(nodes, pool.map(ask, nodes), strict=True))
    failed = [(node, error) for node, error in asked if isinstance(error, TrainctlError)]
    answers = [(node, found) for node, found in asked if isinstance(found, dict)]
    if failed and not answers:
        raise failed[0][1]
    return CacheReport(
        tuple(_row(node, row) for node, found in answers for row in found["listings"]),
        sum(found["freed"] for _, found in answers),
        sum(found.get("bytes", 0) for _, found in answers),
        tuple((node.id, error.summary) for node, error in failed),
    )


def _row(node: Node, row: Mapping[str, Any]) -> CachedListing:
    return CachedListing(
        node.id,
        str(row["id"]),
        str(row["source"]),
        int(row["files"]),
        int(row["bytes"]),
        str(row["outcome"]),
        row.get("last_used"),
        tuple(map(str, row.get("leased_by", ()))),
        tuple(map(str, row.get("wrong_files", ()))),
        str(row.get("detail", "")),
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
