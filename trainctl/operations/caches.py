"""Caches of weights on nodes, verified and evicted; training caches, summarized and cleared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainctl.base.parallel import each
from trainctl.base.protocol.caches import CLEAR_CACHE, READ_CACHE, CacheRequest, ClearRequest
from trainctl.base.protocol.weights import (
    CACHE_EVICT,
    CACHE_VERIFY,
    CacheAnswer,
    EvictRequest,
)
from trainctl.base.units import parse_size
from trainctl.errors import NodeError, NodeUnreachable, StorageError, TrainctlError, UsageError
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address, Kind
from trainctl.model.json_form import from_json
from trainctl.model.reports import (
    Away,
    CacheContent,
    CachedFile,
    CachedListing,
    CacheReport,
    Cleared,
)
from trainctl.operations.streaming import pieces
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import nodes_of
from trainctl.resources.caches import Keeper, keeper, other_keepers
from trainctl.resources.clusters import at
from trainctl.spi.provider import Node

_AT_ONCE = 10
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
    asked = list(zip(nodes, each(answer, nodes, _AT_ONCE), strict=True))
    failed = [(node, error) for node, error in asked if isinstance(error, TrainctlError)]
    answers = [(node, found) for node, found in asked if not isinstance(found, TrainctlError)]
    if failed and not answers:
        raise failed[0][1]
    return CacheReport(
        tuple(
            from_json(CachedListing, {"node": node.id, **row})
            for node, found in answers
            for row in found["listings"]
        ),
        sum(found["freed"] for _, found in answers),
        sum(found["bytes"] for _, found in answers),
        tuple((node.id, error.summary) for node, error in failed),
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """A recorded cache and its directory on a node; ``others`` are asked if that node is unreachable."""

    cache: Recorded
    kept: Keeper
    directory: str
    others: tuple[Keeper, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The contents of a cache, and the unreachable nodes. ``same``: the node that answered shares their directory."""

    content: CacheContent
    away: tuple[Away, ...] = ()
    same: bool = True


def choose(
    state: State, project: str, cluster: str | None = None, *, team: bool = False
) -> Chosen | None:
    """The cache of a project, or of the team on its cluster; None if it has none. UsageError says what there is."""
    name = project.removeprefix("project.")
    projects = sorted(one.name for one in state.resources if one.kind is Kind.PROJECT)
    if name not in projects:
        known = ", ".join(projects) or "none"
        raise UsageError(
            f"no project {name} is in the state", f"In the state: {known}.", code="no-such-cache"
        )
    cache = _on_one_cluster(_caches(state, name), name, cluster)
    if cache is not None and team:
        declared = (
            one
            for one in _caches(state, None)
            if one.cache_spec.cluster == cache.cache_spec.cluster
        )
        shared = next(declared, None)
        kept = keeper(shared or cache, state.resources.get)
        others = other_keepers(shared or cache, state.resources.get)
        return Chosen(shared or cache, kept, kept.directories[-1], tuple(others)) if kept else None
    kept = keeper(cache, state.resources.get) if cache is not None else None
    if cache is None or kept is None:
        return None
    return Chosen(
        cache, kept, kept.directories[0], tuple(other_keepers(cache, state.resources.get))
    )


def summarize(workspace: Workspace, chosen: Chosen) -> Summary:
    """The contents of the cache, from the first reachable node. NodeUnreachable if none is."""
    silent: list[tuple[Keeper, NodeUnreachable]] = []
    for kept in (chosen.kept, *chosen.others):
        try:
            content = _content(workspace, chosen, kept)
        except NodeUnreachable as error:
            silent.append((kept, error))
        else:
            away = tuple(Away(one.node.id, (), why.summary) for one, why in silent)
            return Summary(content, away, not away or bool(chosen.cache.cache_spec.dir))
    raise silent[0][1]


def _content(workspace: Workspace, chosen: Chosen, kept: Keeper) -> CacheContent:
    which = chosen.kept.directories.index(chosen.directory)
    directory, own = kept.directories[which], which == 0
    agent = workspace.agents.to_look(kept.provider, kept.node)
    request = CacheRequest(root=kept.node.root, directory=directory)
    *rows, total = _lines(pieces(lambda take: agent.read(READ_CACHE, request, take)))
    size = chosen.cache.cache_spec.size if own else None
    return CacheContent(
        address=str(chosen.cache.address),
        directory=directory,
        node=kept.node.id,
        at=total["at"],
        files=total["files"],
        bytes=total["bytes"],
        entries=tuple(CachedFile(*row) for row in rows),
        limit=None if size is None else parse_size(size),
    )


def clear(
    workspace: Workspace, chosen: Chosen, older_than: float | None, *, dry_run: bool
) -> Cleared:
    """Remove what was last modified so many seconds ago or earlier; all of it for None. Busy while a run uses it."""
    kept = chosen.kept
    request = ClearRequest(
        root=kept.node.root,
        directory=chosen.directory,
        older_than_seconds=older_than,
        dry_run=dry_run,
    )
    found = workspace.agents.of(kept.provider, kept.node).call(CLEAR_CACHE, request)
    return Cleared(chosen.directory, found["files"], found["bytes"], found["left"], dry_run)


def _caches(state: State, project: str | None) -> list[Recorded]:
    """The recorded caches of a project; for None those that were declared for the team."""
    scope = "team" if project is None else "project"
    return [
        one
        for address, one in sorted(state.resources.items())
        if address.kind is Kind.CACHE
        and (one.cache_spec.scope, one.cache_spec.project) == (scope, project)
    ]


def _on_one_cluster(caches: list[Recorded], project: str, cluster: str | None) -> Recorded | None:
    places = ", ".join(one.cache_spec.cluster for one in caches)
    if cluster is not None:
        wanted = cluster.removeprefix("cluster.")
        caches = [one for one in caches if one.cache_spec.cluster == wanted]
        if not caches:
            raise UsageError(
                f"{project} has no training cache on {wanted}",
                f"It has one on: {places or 'none'}.",
                code="no-such-cache",
            )
    if len(caches) > 1:
        raise UsageError(
            f"{project} has training caches on {places}",
            "Choose: --cluster NAME.",
            code="no-such-cache",
        )
    return caches[0] if caches else None


def _lines(data: Iterator[bytes]) -> Iterator[Any]:
    rest = b""
    for piece in data:
        *whole, rest = (rest + piece).split(b"\n")
        yield from map(json.loads, whole)
    if rest:
        raise NodeError("the node's answer about the cache was cut short", "Try again.")
