"""RPC methods on training caches."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease
from trainctl.base.protocol import training as protocol
from trainctl.node.runs.record import list_specs
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout
from trainctl.node.training.cache import (
    CacheCleaner,
    TrainingCache,
    cache_summary,
    content_lock,
    remove_summary,
    short_name,
    store_summary,
    update_summary,
    walk_entries,
)

Emit = Callable[[Dict[str, Any]], None]
_BUFFER_BYTES = 2**16


def make_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.MakeCacheResponse:
    """Create the directory if missing, and record its owner."""
    layout, cache, lineage, owner = _parse_request(request)
    with _users_lock(layout, cache):
        cache.make(lineage, names.check_name(owner, "owner"))
    return {"directory": str(cache.directory)}


def remove_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.RemoveCacheResponse:
    """Release the directory for an owner or the lineage; remove it if unused."""
    layout, cache, lineage, owner = _parse_request(request)
    with _users_lock(layout, cache):
        cache.release(lineage, owner)
        others = cache.others(lineage, owner)
        freed = 0 if others else cache.remove()
    if not others:
        remove_summary(layout, cache.directory)
    removed = not others and not cache.directory.exists()
    return {"directory": str(cache.directory), "bytes": freed, "removed": removed}


def cache_state(request: protocol.CacheStatesRequest, emit: Emit) -> protocol.CacheStatesResponse:
    """Report usage, other users, and whether the last release removes a cache."""
    layout = Layout(request["root"])
    states: List[protocol.TrainingCacheState] = []
    for item in request["caches"]:
        cache = TrainingCache(layout, item["directory"])
        states.append(
            {
                "directory": str(cache.directory),
                **cache_summary(layout, cache.directory),
                "others": cache.others(request["lineage"], item["owner"]),
                "ours": cache.is_owned,
            }
        )
    return {"caches": states}


def read_cache(request: protocol.TrainingCacheRequest, write: Callable[[bytes], None]) -> None:
    """Write a line of JSON for each entry, and the totals as the last line."""
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
        if size > _BUFFER_BYTES:
            write(("\n".join(pending) + "\n").encode())
            pending, size = [], 0
    usage: protocol.TrainingCacheUsage = {"bytes": total, "files": files, "at": at, "whole": True}
    write(("\n".join([*pending, json.dumps(usage)]) + "\n").encode())
    store_summary(layout, directory, usage)


def clear_cache(request: protocol.ClearCacheRequest, emit: Emit) -> protocol.ClearCacheResponse:
    """Remove files last modified ``older_than_seconds`` ago or earlier."""
    layout = Layout(request["root"])
    cache = TrainingCache(layout, request["directory"])
    dry = request["dry_run"]
    before = time.time() - (request["older_than_seconds"] or 0)
    lock = content_lock(layout, cache.directory)
    if not lock.try_acquire():
        raise Failure("busy", f"{cache.directory} is being prepared or cleared", "Try again later.")
    try:
        if not dry:
            _check_unused(layout, cache.directory)
        cleaner = CacheCleaner(cache.directory, before, dry=dry)
        cleaner.run()
        if cleaner.files and not dry:
            cache.invalidate_preparation()
    finally:
        lock.release()
    if not dry:
        update_summary(layout, cache.directory)
    return {"files": cleaner.files, "bytes": cleaner.bytes, "left": cleaner.remaining}


def _check_unused(layout: Layout, directory: Path) -> None:
    for run, spec in list_specs(layout):
        status = run.status() if str(directory) in spec["caches"] else None
        if status and status["supervised"]:
            raise Failure(
                "busy",
                f"the cache is in use by run {spec['number']} of {spec['address']}",
                "Wait for the run to end, or stop it.",
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
