"""Verify and evict weights caches; summarize and clear training caches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.parallel import each
from trainctl.base.protocol.training import (
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
from trainctl.errors import NodeError, StorageError, TrainctlError, UsageError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind, slug
from trainctl.model.reports import (
    CacheClearResult,
    CachedFile,
    CacheReport,
    CacheUsage,
)
from trainctl.operations.streams import iterate_callbacks
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import nodes_of
from trainctl.resources.caches import CacheLocation, find_cache_location
from trainctl.resources.clusters import cache_target

_AT_ONCE = 10
OnProgress = Callable[[str, int, int], None]
"""Called with a node's id, bytes done and bytes in total, from several threads."""


@dataclass(frozen=True, slots=True)
class CacheSelection:
    """A cluster, and the names of some of its nodes; none means all."""

    cluster: str
    nodes: tuple[str, ...] = ()


def evict(
    workspace: Workspace, selection: CacheSelection, names: Sequence[str], *, dry_run: bool = False
) -> CacheReport:
    """Evict listings, by id or weights address, or all; keep leased ones."""
    state = workspace.ledger.state()
    listings = [_listing(state, name) for name in names] or None

    def call(node: Node, cluster: RecordedResource) -> CacheListingsResponse:
        agent = workspace.agents.of(cluster.provider, node, ephemeral=True)
        target = cache_target(node, cluster.cluster_spec)
        request = CacheEvictRequest(**target, listings=listings, dry_run=dry_run)
        return agent.call(CACHE_EVICT, request)

    return _call_nodes(state, selection, call)


def verify(
    workspace: Workspace, selection: CacheSelection, progress: OnProgress | None = None
) -> CacheReport:
    """Hash all cached files; listings with corrupt files are evicted."""

    def call(node: Node, cluster: RecordedResource) -> CacheListingsResponse:
        def on_event(event: Mapping[str, Any]) -> None:
            if progress is not None:
                progress(node.id, int(event["done"]), int(event["total"]))

        agent = workspace.agents.of(cluster.provider, node, ephemeral=True)
        return agent.call(CACHE_VERIFY, cache_target(node, cluster.cluster_spec), on_event=on_event)

    return _call_nodes(workspace.ledger.state(), selection, call)


def _call_nodes(
    state: State,
    selection: CacheSelection,
    call: Callable[[Node, RecordedResource], CacheListingsResponse],
) -> CacheReport:
    cluster = _cluster(state, selection.cluster)

    def try_call(node: Node) -> CacheListingsResponse | TrainctlError:
        try:
            return call(node, cluster)
        except (NodeError, StorageError) as error:
            return error

    nodes = _nodes(cluster, selection)
    replies = list(zip(nodes, each(try_call, nodes, _AT_ONCE), strict=True))
    errors = [(node, error) for node, error in replies if isinstance(error, TrainctlError)]
    responses = [(node, reply) for node, reply in replies if not isinstance(reply, TrainctlError)]
    if errors and not responses:
        raise errors[0][1]
    return CacheReport(
        tuple((node.id, row) for node, response in responses for row in response["listings"]),
        sum(response["freed"] for _, response in responses),
        sum(response["bytes"] for _, response in responses),
        tuple((node.id, error.summary) for node, error in errors),
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
    cluster = state.resources.get(Address(Kind.CLUSTER, name))
    if cluster is None:
        names = sorted(address.name for address in state.resources if address.kind is Kind.CLUSTER)
        known = ", ".join(names) or "no cluster"
        raise UsageError(f"cluster {name} is not in the state", f"In the state: {known}.")
    return cluster


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
    """A cache, and its directory on a node."""

    cache: RecordedResource
    location: CacheLocation
    directory: str


def select_cache(
    state: State, project: str, cluster: str | None = None, *, team: bool = False
) -> SelectedCache | None:
    """Select the cache of a project, or the team cache on its cluster."""
    name = slug(project.removeprefix("project."))
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
        on_cluster = cache.cache_spec.cluster
        declared = [item for item in _caches(state, None) if item.cache_spec.cluster == on_cluster]
        cache = declared[0] if declared else cache
    location = find_cache_location(cache, state.resources.get) if cache is not None else None
    if cache is None or location is None:
        return None
    # The last directory of a project's cache is the team's.
    directory = location.directories[-1 if team else 0]
    return SelectedCache(cache, location, directory)


def summarize(workspace: Workspace, chosen: SelectedCache) -> CacheUsage:
    """Read the contents from the node."""
    location, directory = chosen.location, chosen.directory
    agent = workspace.agents.of(location.provider, location.node, ephemeral=True)
    request = TrainingCacheRequest(root=location.node.root, directory=directory)
    *rows, total = _lines(iterate_callbacks(lambda take: agent.read(READ_CACHE, request, take)))
    size = chosen.cache.cache_spec.size if directory == location.directories[0] else None
    return CacheUsage(
        str(chosen.cache.address),
        location.node.id,
        directory,
        total["at"],
        files=total["files"],
        bytes=total["bytes"],
        entries=tuple(CachedFile(*row) for row in rows),
        limit=None if size is None else parse_size(size),
    )


def clear(
    workspace: Workspace, chosen: SelectedCache, older_than: float | None, *, dry_run: bool
) -> CacheClearResult:
    """Delete files not modified for ``older_than`` seconds; None: all files."""
    location = chosen.location
    request = ClearCacheRequest(
        root=location.node.root,
        directory=chosen.directory,
        older_than_seconds=older_than,
        dry_run=dry_run,
    )
    agent = workspace.agents.of(location.provider, location.node)
    response = agent.call(CLEAR_CACHE, request)
    return CacheClearResult(
        chosen.directory, response["files"], response["bytes"], response["left"], dry_run
    )


def _caches(state: State, project: str | None) -> list[RecordedResource]:
    """Return the recorded caches of a project; None: those of the team."""
    scope = "team" if project is None else "project"
    return [
        cache
        for address, cache in sorted(state.resources.items())
        if address.kind is Kind.CACHE
        and (cache.cache_spec.scope, cache.cache_spec.project) == (scope, project)
    ]


def _require_one_cluster(
    caches: list[RecordedResource], project: str, cluster: str | None
) -> RecordedResource | None:
    places = ", ".join(cache.cache_spec.cluster for cache in caches)
    if cluster is not None:
        cluster = cluster.removeprefix("cluster.")
        caches = [cache for cache in caches if cache.cache_spec.cluster == cluster]
        if not caches:
            raise UsageError(
                f"{project} has no training cache on {cluster}",
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
    for buffer in data:
        *lines, rest = (rest + buffer).split(b"\n")
        yield from map(json.loads, lines)
    if rest:
        raise NodeError("truncated response from the node about the cache", "Try again.")
