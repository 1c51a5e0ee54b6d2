"""Looking into a project's training cache, and making room in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainctl.base.protocol.caches import CLEAR_CACHE, READ_CACHE, CacheRequest, ClearRequest
from trainctl.base.units import parse_size
from trainctl.errors import NodeError, NodeUnreachable, UsageError
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Kind
from trainctl.model.reports import Away, CacheContent, CachedFile, Cleared
from trainctl.operations.streaming import pieces
from trainctl.operations.workspace import Workspace
from trainctl.resources.caches import Keeper, keeper, other_keepers


@dataclass(frozen=True, slots=True)
class Chosen:
    """One recorded cache, and which of the directories that a node keeps for it is meant; ``others`` may be asked where its keeper is away."""

    cache: Recorded
    kept: Keeper
    directory: str
    others: tuple[Keeper, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What a cache holds, and the nodes that could not be asked. ``same``: who answered keeps the same directory as they."""

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
    """What the cache holds now, on the first of its nodes that can be asked. NodeUnreachable where nobody can tell."""
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
