"""Forget a lineage and remove unreferenced data, in the order of invariant 7 of cache/DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from trainctl.base.filesystem.files import list_names, make_directory, remove_tree
from trainctl.base.protocol.method import LineageRequest
from trainctl.base.protocol.weights import ForgetCacheResponse, ForgetResponse
from trainctl.errors import TrainctlError
from trainctl.node.cache.eviction import CacheEviction, CacheInventory
from trainctl.node.cache.holds import CacheHolds, space_lock
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.containers.images import ImageStore
from trainctl.node.runs.record import list_runs, list_specs
from trainctl.node.supervision import run_methods
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Dict[str, Any]], None]
_MIN_AGE_SECONDS = 3600.0
_CACHE_DIRECTORIES = {
    "blobs",
    "partial",
    "locks",
    "trees",
    "complete",
    "listings",
    "references",
    "holds",
    "reservations",
}


def forget(request: LineageRequest, emit: Emit) -> ForgetResponse:
    """Drop a lineage's references and ended runs, then remove unreferenced data.

    Returns ``freed`` in bytes, and ``empty`` if nothing is left under the root directory and in used caches.
    """
    layout = layout_of(request)
    lineage = names.check_name(request["lineage"], "lineage")
    caches = _caches(layout, lineage)
    for run, spec in list_specs(layout):
        if spec["lineage"] == lineage:
            with contextlib.suppress(TrainctlError):  # keep live runs and what they need
                run_methods.remove({"root": str(layout.root), "key": run.key}, emit)
    run_methods.remove_old_marks(layout)
    ImageStore(layout).drop(lineage)
    runs = {run.key for run in list_runs(layout)}
    freed = _forget_shared(request, lineage)
    for cache in caches:
        CacheReferences(cache).drop(lineage)
        CacheHolds(cache).release_unstarted(lineage, runs)
        freed += _collect(cache)
    alone = not any(CacheReferences(cache).lineages() for cache in caches)
    freed += _remove_unused(layout, alone=alone)
    files = (path for path in (layout.root / "caches").rglob("*") if path.is_file())
    is_empty = alone and not list_runs(layout) and next(files, None) is None
    return {"freed": freed, "empty": is_empty}


def forget_cache(request: LineageRequest, emit: Emit) -> ForgetCacheResponse:
    """Drop a lineage's references in one cache and remove unreferenced data."""
    layout = layout_of(request)
    lineage = names.check_name(request["lineage"], "lineage")
    CacheReferences(layout).drop_listings(lineage)
    return {"freed": _forget_shared(request, lineage) + _collect(layout)}


def _forget_shared(request: Mapping[str, Any], lineage: str) -> int:
    """Drop the lineage's references in the shared cache and remove unreferenced blobs."""
    if not request.get("shared"):
        return 0
    from trainctl.node.transfer.shared_cache import SharedCache  # slow to import

    return SharedCache(request["shared"]).forget(lineage)


def _caches(layout: Layout, lineage: str) -> List[Layout]:
    """Caches of the root directory, the request and the lineage's runs."""
    used = {spec["cache"] for _, spec in list_specs(layout) if spec["lineage"] == lineage}
    paths = {Layout(str(layout.root), path).cache for path in used} | {layout.cache}
    own = Layout(str(layout.root))
    return [own] + [Layout(str(layout.root), str(path)) for path in sorted(paths - {own.cache})]


def _collect(layout: Layout) -> int:
    """Remove listings that are neither referenced nor held; the bytes freed."""
    if not layout.cache.is_dir():
        return 0
    make_directory(layout.locks)
    references, holds = CacheReferences(layout), CacheHolds(layout)
    with space_lock(layout):
        listings = CacheInventory(layout).listings()
        eviction = CacheEviction(layout, listings)

        def is_needed(listing: str) -> bool:
            return references.refers(listing) or holds.is_needed(listing)

        freed = sum(eviction.remove_listing(entry, is_needed) or 0 for entry in listings)
        freed += eviction.remove_orphans()
    if references.lineages() or holds.live_holds():
        return freed
    freed += sum(remove_tree(layout.partial / name) for name in list_names(layout.partial))
    remove_tree(layout.reservations)
    for path in layout.completion_markers.glob("*.pending"):
        path.unlink()
    if layout.cache != Layout(str(layout.root)).cache:  # a configured directory
        for name in _CACHE_DIRECTORIES:
            for directory, _, _ in os.walk(str(layout.cache / name), topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
    return freed


def _remove_unused(layout: Layout, *, alone: bool) -> int:
    """Remove unused code and environments; recent ones only if no other lineage is here."""
    specs = [spec for _, spec in list_specs(layout)]
    used = {layout.archive(spec["code"]) for spec in specs}
    used |= {Path(f"{spec['venv']}.json") for spec in specs}
    archives = [layout.code / name for name in list_names(layout.code)]
    freed = 0
    for path in (*archives, *layout.environments.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if path not in used and (alone or time.time() - status.st_mtime > _MIN_AGE_SECONDS):
                path.unlink()
                is_code = path.parent == layout.code
                freed += status.st_size if is_code else remove_tree(path.with_suffix(""))
    return freed
