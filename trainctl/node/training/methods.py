"""Verbs about training caches: make_cache, remove_cache, cache_state, read_cache, clear_cache."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease
from trainctl.base.protocol import caches as protocol
from trainctl.node.runs.record import list_specs
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout
from trainctl.node.training.cache import (
    CacheCleaner,
    TrainingCache,
    cache_summary,
    content_lock,
    forget_summary,
    keep_summary,
    short_name,
    update_summary,
    walk_entries,
)

Emit = Callable[[Dict[str, Any]], None]
_PIECE_BYTES = 2**16


def make_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.MakeCacheResponse:
    """Make the directory, or find it; the owner refers to it from now on."""
    layout, cache, lineage, owner = _parse_request(request)
    with _users_lock(layout, cache):
        cache.make(lineage, names.check_name(owner, "owner"))
    return {"directory": str(cache.directory)}


def remove_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.RemoveCacheResponse:
    """Let go of the directory, in the name of one owner or of the whole lineage; the last to let go takes it along."""
    layout, cache, lineage, owner = _parse_request(request)
    with _users_lock(layout, cache):
        cache.release(lineage, owner)
        left = cache.others(lineage, owner)
        freed = 0 if left else cache.remove()
    if not left:
        forget_summary(layout, cache.directory)
    removed = not left and not cache.directory.exists()
    return {"directory": str(cache.directory), "bytes": freed, "removed": removed}


def cache_state(request: protocol.CacheStatesRequest, emit: Emit) -> protocol.CacheStatesResponse:
    """What each cache holds by its summary, who else refers to it, and whether it would go with its last owner."""
    layout = Layout(request["root"])
    found: List[protocol.TrainingCacheState] = []
    for asked in request["caches"]:
        cache = TrainingCache(layout, asked["directory"])
        found.append(
            {
                "directory": str(cache.directory),
                **cache_summary(layout, cache.directory),
                "others": cache.others(request["lineage"], asked["owner"]),
                "ours": cache.ours,
            }
        )
    return {"caches": found}


def read_cache(request: protocol.TrainingCacheRequest, write: Callable[[bytes], None]) -> None:
    """Lines of JSON: each entry as it is found, at last what they add up to."""
    layout = Layout(request["root"])
    directory = TrainingCache(layout, request["directory"]).directory
    at, total, files = time.time(), 0, 0
    pending: List[str] = []
    size = 0
    for entry in walk_entries(directory):
        if not entry.is_directory:
            total += entry.size
            files += 1
        pending.append(json.dumps(entry))
        size += len(pending[-1])
        if size > _PIECE_BYTES:
            write(("\n".join(pending) + "\n").encode())
            pending, size = [], 0
    found: protocol.TrainingCacheUsage = {"bytes": total, "files": files, "at": at, "whole": True}
    write(("\n".join([*pending, json.dumps(found)]) + "\n").encode())
    keep_summary(layout, directory, found)


def clear_cache(request: protocol.ClearCacheRequest, emit: Emit) -> protocol.ClearCacheResponse:
    """Remove what was last modified ``older_than_seconds`` ago or earlier; what is written after the call began stays."""
    layout = Layout(request["root"])
    cache = TrainingCache(layout, request["directory"])
    dry = request["dry_run"]
    before = time.time() - (request["older_than_seconds"] or 0)
    lock = content_lock(layout, cache.directory)
    if not lock.try_acquire():
        raise Failure(
            "busy", f"another process prepares or clears {cache.directory}", "Try again later."
        )
    try:
        if not dry:
            _refuse_while_used(layout, cache.directory)
        clearing = CacheCleaner(cache.directory, before, dry=dry)
        clearing.run()
        if clearing.files and not dry:
            cache.invalidate_preparation()
    finally:
        lock.release()
    if not dry:
        update_summary(layout, cache.directory)
    return {"files": clearing.files, "bytes": clearing.bytes, "left": clearing.left}


def _refuse_while_used(layout: Layout, directory: Path) -> None:
    for run, spec in list_specs(layout):
        now = run.status() if str(directory) in spec["caches"] else None
        if now and now["supervised"]:
            raise Failure(
                "busy",
                f"run {spec['number']} of {spec['address']} uses the cache",
                "Wait for its end, or stop it.",
            )


def _parse_request(request: protocol.CacheOwnerRequest) -> Tuple[Layout, TrainingCache, str, str]:
    layout = Layout(request["root"])
    owner = request.get("owner", "")
    return (
        layout,
        TrainingCache(layout, request["directory"]),
        names.check_name(request["lineage"], "lineage"),
        names.check_name(owner, "owner") if owner else "",
    )


def _users_lock(layout: Layout, cache: TrainingCache) -> FileLease:
    return FileLease(make_directory(layout.training) / f"{short_name(cache.directory)}-users.lock")
