"""Caches of weights on nodes, verified and evicted; training caches, summarized and cleared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainctl.base.parallel import each
from trainctl.base.protocol.caches import (
    CLEAR_CACHE,
    READ_CACHE,
    ClearCacheRequest,
    TrainingCacheRequest,
)
from trainctl.base.protocol.weights import (
    CACHE_EVICT,
    CACHE_VERIFY,
    CacheEvictRequest,
    CacheListingsResponse,
)
from trainctl.base.units import parse_size
from trainctl.errors import NodeError, NodeUnreachable, StorageError, TrainctlError, UsageError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import from_json
from trainctl.model.reports import (
    CacheClearResult,
    CachedFile,
    CachedListingReport,
    CacheReport,
    CacheUsage,
    UnreachableNode,
)
from trainctl.operations.streams import iterate_callbacks
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import nodes_of
from trainctl.resources.caches import CacheLocation, find_cache_location, other_cache_locations
from trainctl.resources.clusters import cache_target

_AT_ONCE = 10
OnProgress = Callable[[str, int, int], None]
"""Called with a node's id, bytes done and bytes in total, from several threads."""


@dataclass(frozen=True, slots=True)
class CacheSelection:
    """Which caches: a cluster by name, and of its nodes those named, all by default."""

    cluster: str
    nodes: tuple[str, ...] = ()


def evict(
    workspace: Workspace, selection: CacheSelection, names: Sequence[str], *, dry_run: bool = False
) -> CacheReport:
    """Evict listings, by id or as the weights that they are of, or all; what live runs lease stays."""
    state = workspace.ledger.state()
    listings = [_listing(state, name) for name in names] or None

    def ask(node: Node, cluster: RecordedResource) -> CacheListingsResponse:
        agent = workspace.agents.ephemeral_agent(cluster.provider, node)
        where = cache_target(node, cluster.cluster_spec)
        return agent.call(
            CACHE_EVICT, CacheEvictRequest(**where, listings=listings, dry_run=dry_run)
        )

    return _ask_nodes(state, selection, ask)


def verify(
    workspace: Workspace, selection: CacheSelection, tell: OnProgress | None = None
) -> CacheReport:
    """Hash everything in the caches; listings with wrong files are removed and fetched by the next delivery."""

    def ask(node: Node, cluster: RecordedResource) -> CacheListingsResponse:
        def on_event(event: Mapping[str, Any]) -> None:
            if tell is not None:
                tell(node.id, int(event["done"]), int(event["total"]))

        agent = workspace.agents.ephemeral_agent(cluster.provider, node)
        return agent.call(CACHE_VERIFY, cache_target(node, cluster.cluster_spec), on_event=on_event)

    return _ask_nodes(workspace.ledger.state(), selection, ask)


def _ask_nodes(
    state: State,
    selection: CacheSelection,
    ask: Callable[[Node, RecordedResource], CacheListingsResponse],
) -> CacheReport:
    cluster = _cluster(state, selection.cluster)

    def answer(node: Node) -> CacheListingsResponse | TrainctlError:
        try:
            return ask(node, cluster)
        except (NodeError, StorageError) as error:
            return error

    nodes = _nodes(cluster, selection)
    asked = list(zip(nodes, each(answer, nodes, _AT_ONCE), strict=True))
    failed = [(node, error) for node, error in asked if isinstance(error, TrainctlError)]
    answers = [(node, found) for node, found in asked if not isinstance(found, TrainctlError)]
    if failed and not answers:
        raise failed[0][1]
    return CacheReport(
        tuple(
            from_json(CachedListingReport, {"node": node.id, **row})
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
        known = sorted(
            str(resource) for resource in state.resources if resource.kind is Kind.WEIGHTS
        )
        raise UsageError(
            f"{name} is not in the state", f"In the state: {', '.join(known) or 'no weights'}."
        )
    return str(listing)


def _cluster(state: State, text: str) -> RecordedResource:
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


def _nodes(cluster: RecordedResource, selection: CacheSelection) -> list[Node]:
    nodes = nodes_of(cluster)
    chosen = [node for node in nodes if {node.name, node.id} & set(selection.nodes)]
    missing = set(selection.nodes) - {name for node in chosen for name in (node.name, node.id)}
    if missing:
        raise UsageError(
            f"{cluster.address} has no node {min(missing)}",
            f"Nodes of the cluster: {', '.join(node.name for node in nodes)}.",
        )
    return chosen if selection.nodes else list(nodes)


@dataclass(frozen=True, slots=True)
class SelectedCache:
    """A recorded cache and its directory on a node; ``others`` are asked if that node is unreachable."""

    cache: RecordedResource
    location: CacheLocation
    directory: str
    others: tuple[CacheLocation, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheSummary:
    """The contents of a cache, and the unreachable nodes. ``same``: the node that answered shares their directory."""

    content: CacheUsage
    unreachable: tuple[UnreachableNode, ...] = ()
    same: bool = True


def select_cache(
    state: State, project: str, cluster: str | None = None, *, team: bool = False
) -> SelectedCache | None:
    """The cache of a project, or of the team on its cluster; None if it has none. UsageError says what there is."""
    name = project.removeprefix("project.")
    projects = sorted(
        resource.name for resource in state.resources if resource.kind is Kind.PROJECT
    )
    if name not in projects:
        known = ", ".join(projects) or "none"
        raise UsageError(
            f"project {name} is not in the state", f"In the state: {known}.", code="cache-not-found"
        )
    cache = _require_one_cluster(_caches(state, name), name, cluster)
    if cache is not None and team:
        declared = (
            one
            for one in _caches(state, None)
            if one.cache_spec.cluster == cache.cache_spec.cluster
        )
        shared = next(declared, None)
        location = find_cache_location(shared or cache, state.resources.get)
        others = other_cache_locations(shared or cache, state.resources.get)
        return (
            SelectedCache(shared or cache, location, location.directories[-1], tuple(others))
            if location
            else None
        )
    location = find_cache_location(cache, state.resources.get) if cache is not None else None
    if cache is None or location is None:
        return None
    return SelectedCache(
        cache,
        location,
        location.directories[0],
        tuple(other_cache_locations(cache, state.resources.get)),
    )


def summarize(workspace: Workspace, chosen: SelectedCache) -> CacheSummary:
    """The contents of the cache, from the first reachable node. NodeUnreachable if none is."""
    failures: list[tuple[CacheLocation, NodeUnreachable]] = []
    for location in (chosen.location, *chosen.others):
        try:
            content = _read_content(workspace, chosen, location)
        except NodeUnreachable as error:
            failures.append((location, error))
        else:
            unreachable = tuple(
                UnreachableNode(one.node.id, (), why.summary) for one, why in failures
            )
            return CacheSummary(
                content, unreachable, not unreachable or bool(chosen.cache.cache_spec.dir)
            )
    raise failures[0][1]


def _read_content(
    workspace: Workspace, chosen: SelectedCache, location: CacheLocation
) -> CacheUsage:
    selection = chosen.location.directories.index(chosen.directory)
    directory, own = location.directories[selection], selection == 0
    agent = workspace.agents.ephemeral_agent(location.provider, location.node)
    request = TrainingCacheRequest(root=location.node.root, directory=directory)
    *rows, total = _lines(iterate_callbacks(lambda take: agent.read(READ_CACHE, request, take)))
    size = chosen.cache.cache_spec.size if own else None
    return CacheUsage(
        address=str(chosen.cache.address),
        directory=directory,
        node=location.node.id,
        at=total["at"],
        files=total["files"],
        bytes=total["bytes"],
        entries=tuple(CachedFile(*row) for row in rows),
        limit=None if size is None else parse_size(size),
    )


def clear(
    workspace: Workspace, chosen: SelectedCache, older_than: float | None, *, dry_run: bool
) -> CacheClearResult:
    """Remove what was last modified so many seconds ago or earlier; all of it for None. Busy while a run uses it."""
    location = chosen.location
    request = ClearCacheRequest(
        root=location.node.root,
        directory=chosen.directory,
        older_than_seconds=older_than,
        dry_run=dry_run,
    )
    found = workspace.agents.of(location.provider, location.node).call(CLEAR_CACHE, request)
    return CacheClearResult(
        chosen.directory, found["files"], found["bytes"], found["left"], dry_run
    )


def _caches(state: State, project: str | None) -> list[RecordedResource]:
    """The recorded caches of a project; for None those that were declared for the team."""
    scope = "team" if project is None else "project"
    return [
        one
        for address, one in sorted(state.resources.items())
        if address.kind is Kind.CACHE
        and (one.cache_spec.scope, one.cache_spec.project) == (scope, project)
    ]


def _require_one_cluster(
    caches: list[RecordedResource], project: str, cluster: str | None
) -> RecordedResource | None:
    places = ", ".join(cache.cache_spec.cluster for cache in caches)
    if cluster is not None:
        wanted = cluster.removeprefix("cluster.")
        caches = [cache for cache in caches if cache.cache_spec.cluster == wanted]
        if not caches:
            raise UsageError(
                f"{project} has no training cache on {wanted}",
                f"It has a training cache on: {places or 'none'}.",
                code="cache-not-found",
            )
    if len(caches) > 1:
        raise UsageError(
            f"{project} has training caches on {places}",
            "Choose a cluster with --cluster.",
            code="cache-not-found",
        )
    return caches[0] if caches else None


def _lines(data: Iterator[bytes]) -> Iterator[Any]:
    rest = b""
    for piece in data:
        *whole, rest = (rest + piece).split(b"\n")
        yield from map(json.loads, whole)
    if rest:
        raise NodeError("truncated response from the node about the cache", "Try again.")
