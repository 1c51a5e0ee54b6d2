"""Forgetting a lineage, and collecting what is unreferenced. The order is invariant 7 of DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from trainctl.base.failure import Failure
from trainctl.base.files import make_directory, names_in, remove_tree
from trainctl.base.protocol.verb import OfLineage
from trainctl.base.protocol.weights import Forgotten, Freed
from trainctl.node.cache.evict import Removal
from trainctl.node.cache.inventory import Inventory
from trainctl.node.cache.leases import Leases, room_lock
from trainctl.node.cache.listings import References
from trainctl.node.containers.image_store import ImageStore
from trainctl.node.runs.record import all_runs, all_specs
from trainctl.node.supervision import run_verbs
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.transfer.shared import shared_of

Emit = Callable[[Dict[str, Any]], None]
_YOUNG_SECONDS = 3600.0
_OURS = {
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


def forget(request: OfLineage, emit: Emit) -> Forgotten:
    """Drop a lineage's references and ended runs, then all that is unreferenced.

    ``freed`` in bytes; ``empty`` when nothing of anybody is left under ROOT or in the caches that were used.
    """
    layout = layout_of(request)
    lineage = names.name(request["lineage"], "lineage")
    caches = _caches(layout, lineage)
    for run, spec in all_specs(layout):
        if spec["lineage"] == lineage:
            with contextlib.suppress(Failure):  # a live run stays, and so what it needs
                run_verbs.remove({"root": str(layout.root), "key": run.key}, emit)
    run_verbs.remove_old_marks(layout)
    ImageStore(layout).drop(lineage)
    runs = {run.key for run in all_runs(layout)}
    freed = _forget_shared(request, lineage)
    for cache in caches:
        References(cache).drop(lineage)
        Leases(cache).release_unstarted(lineage, runs)
        freed += _collect(cache)
    alone = not any(References(cache).lineages() for cache in caches)
    freed += _unused_code(layout, alone=alone) + _unused_environments(layout, alone=alone)
    return {"freed": freed, "empty": alone and _empty(layout)}


def forget_cache(request: OfLineage, emit: Emit) -> Freed:
    """Drop a lineage's references in one cache, then all that is unreferenced in it; live runs keep what they lease."""
    layout = layout_of(request)
    lineage = names.name(request["lineage"], "lineage")
    References(layout).drop_listings(lineage)
    return {"freed": _forget_shared(request, lineage) + _collect(layout)}


def _forget_shared(request: Mapping[str, Any], lineage: str) -> int:
    """Drop the lineage's references in the cluster's shared cache, and what is unreferenced in it."""
    shared = shared_of(request)
    return shared.forget(lineage) if shared is not None else 0


def _caches(layout: Layout, lineage: str) -> List[Layout]:
    """The cache under ROOT, the one that is asked about, and those that the lineage's runs have used."""
    used = {spec["cache"] for _, spec in all_specs(layout) if spec["lineage"] == lineage}
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
    references, leases = References(layout), Leases(layout)
    with room_lock(layout):
        listings = Inventory(layout).listings()
        removal = Removal(layout, listings)

        def needed(listing: str) -> bool:
            return references.refers(listing) or leases.need(listing)

        freed = sum(removal.listing(kept, needed) or 0 for kept in listings) + removal.strays()
    if not references.lineages() and not leases.live():
        freed += _empty_out(layout)
    return freed


def _empty_out(layout: Layout) -> int:
    """Remove what killed processes left in an unused cache, and leave a declared directory as empty as it was."""
    freed = sum(remove_tree(layout.partial / name) for name in names_in(layout.partial))
    remove_tree(layout.reservations)
    for path in layout.seals.glob("*.doomed"):
        path.unlink()
    if layout.cache != Layout(str(layout.root)).cache:
        for name in _OURS:
            for directory, _, _ in os.walk(str(layout.cache / name), topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
    return freed


def _unused_code(layout: Layout, *, alone: bool) -> int:
    used = {layout.archive(spec["code"]).name for _, spec in all_specs(layout)}
    freed = 0
    for name in names_in(layout.code):
        with contextlib.suppress(FileNotFoundError):
            found = (layout.code / name).stat()
            if name not in used and (alone or time.time() - found.st_mtime > _YOUNG_SECONDS):
                (layout.code / name).unlink()
                freed += found.st_size
    return freed


def _unused_environments(layout: Layout, *, alone: bool) -> int:
    """As with code: what a run here names stays, and what is young where others are."""
    used = {spec["host"]["venv"] for _, spec in all_specs(layout)}
    freed = 0
    for seal in layout.environments.glob("*.json"):
        path = seal.with_suffix("")
        with contextlib.suppress(FileNotFoundError):
            young = time.time() - seal.stat().st_mtime <= _YOUNG_SECONDS
            if str(path) not in used and (alone or not young):
                seal.unlink()
                freed += remove_tree(path)
    return freed


def _empty(layout: Layout) -> bool:
    """Whether no run is here and no training cache holds a file."""
    caches = layout.root / "caches"
    held = any(path.is_file() for path in caches.rglob("*")) if caches.is_dir() else False
    return not (all_runs(layout) or held)
