"""Forgetting a lineage, and collecting what is unreferenced. The order is invariant 7 of DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import list_names, make_directory, remove_tree
from trainctl.base.protocol.method import LineageRequest
from trainctl.base.protocol.weights import ForgetCacheResponse, ForgetResponse
from trainctl.node.cache.eviction import CacheEviction
from trainctl.node.cache.inventory import CacheInventory
from trainctl.node.cache.leases import CacheLeases, space_lock
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.containers.image_store import ImageStore
from trainctl.node.runs.record import list_runs, list_specs
from trainctl.node.supervision import run_methods
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.transfer.shared_cache import open_shared_cache

Emit = Callable[[Dict[str, Any]], None]
_MIN_AGE_SECONDS = 3600.0
_CACHE_DIRECTORIES = {
    "blobs",
    "partial",
    "locks",
    "trees",
    "seals",
    "listings",
    "references",
    "leases",
    "reservations",
}


def forget(request: LineageRequest, emit: Emit) -> ForgetResponse:
    """Drop a lineage's references and ended runs, then all that is unreferenced.

    ``freed`` in bytes; ``empty`` when nothing of anybody is left under ROOT or in the caches that were used.
    """
    layout = layout_of(request)
    lineage = names.check_name(request["lineage"], "lineage")
    caches = _caches(layout, lineage)
    for run, spec in list_specs(layout):
        if spec["lineage"] == lineage:
            with contextlib.suppress(Failure):  # a live run stays, and so what it needs
                run_methods.remove({"root": str(layout.root), "key": run.key}, emit)
    run_methods.remove_old_marks(layout)
    ImageStore(layout).drop(lineage)
    runs = {run.key for run in list_runs(layout)}
    freed = _forget_shared(request, lineage)
    for cache in caches:
        CacheReferences(cache).drop(lineage)
        CacheLeases(cache).release_unstarted(lineage, runs)
        freed += _collect(cache)
    alone = not any(CacheReferences(cache).lineages() for cache in caches)
    freed += _remove_unused_code(layout, alone=alone) + _remove_unused_environments(
        layout, alone=alone
    )
    return {"freed": freed, "empty": alone and _is_empty(layout)}


def forget_cache(request: LineageRequest, emit: Emit) -> ForgetCacheResponse:
    """Drop a lineage's references in one cache, then all that is unreferenced in it; live runs keep what they lease."""
    layout = layout_of(request)
    lineage = names.check_name(request["lineage"], "lineage")
    CacheReferences(layout).drop_listings(lineage)
    return {"freed": _forget_shared(request, lineage) + _collect(layout)}


def _forget_shared(request: Mapping[str, Any], lineage: str) -> int:
    """Drop the lineage's references in the cluster's shared cache, and what is unreferenced in it."""
    shared = open_shared_cache(request)
    return shared.forget(lineage) if shared is not None else 0


def _caches(layout: Layout, lineage: str) -> List[Layout]:
    """The cache under ROOT, the one that is asked about, and those that the lineage's runs have used."""
    used = {spec["cache"] for _, spec in list_specs(layout) if spec["lineage"] == lineage}
    places = {Layout(str(layout.root), one).cache for one in used} | {layout.cache}
    return [Layout(str(layout.root))] + [
        Layout(str(layout.root), str(place))
        for place in sorted(places - {Layout(str(layout.root)).cache})
    ]


def _collect(layout: Layout) -> int:
    """Remove what no lineage refers to and no live run leases; the bytes freed."""
    if not layout.cache.is_dir():
        return 0
    make_directory(layout.locks)
    references, leases = CacheReferences(layout), CacheLeases(layout)
    with space_lock(layout):
        listings = CacheInventory(layout).listings()
        removal = CacheEviction(layout, listings)

        def needed(listing: str) -> bool:
            return references.refers(listing) or leases.need(listing)

        freed = (
            sum(removal.listing(kept, needed) or 0 for kept in listings) + removal.remove_orphans()
        )
    if not references.lineages() and not leases.live():
        freed += _remove_leftovers(layout)
    return freed


def _remove_leftovers(layout: Layout) -> int:
    """Remove what killed processes left in an unused cache, and leave a declared directory as empty as it was."""
    freed = sum(remove_tree(layout.partial / name) for name in list_names(layout.partial))
    remove_tree(layout.reservations)
    for path in layout.seals.glob("*.doomed"):
        path.unlink()
    if layout.cache != Layout(str(layout.root)).cache:
        for name in _CACHE_DIRECTORIES:
            for directory, _, _ in os.walk(str(layout.cache / name), topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
    return freed


def _remove_unused_code(layout: Layout, *, alone: bool) -> int:
    used = {layout.archive(spec["code"]).name for _, spec in list_specs(layout)}
    freed = 0
    for name in list_names(layout.code):
        with contextlib.suppress(FileNotFoundError):
            found = (layout.code / name).stat()
            if name not in used and (alone or time.time() - found.st_mtime > _MIN_AGE_SECONDS):
                (layout.code / name).unlink()
                freed += found.st_size
    return freed


def _remove_unused_environments(layout: Layout, *, alone: bool) -> int:
    """As with code: what a run here names stays, and what is young where others are."""
    used = {spec["host"]["venv"] for _, spec in list_specs(layout)}
    freed = 0
    for completion_marker in layout.environments.glob("*.json"):
        path = completion_marker.with_suffix("")
        with contextlib.suppress(FileNotFoundError):
            young = time.time() - completion_marker.stat().st_mtime <= _MIN_AGE_SECONDS
            if str(path) not in used and (alone or not young):
                completion_marker.unlink()
                freed += remove_tree(path)
    return freed


def _is_empty(layout: Layout) -> bool:
    """Whether no run is here and no training cache holds a file."""
    caches = layout.root / "caches"
    held = any(path.is_file() for path in caches.rglob("*")) if caches.is_dir() else False
    return not (list_runs(layout) or held)
