"""Verify a node's cache by hashing every byte; remove corrupt blobs."""

from __future__ import annotations

import contextlib
import os
import time
from typing import AbstractSet, Any, Callable, List, Mapping, Tuple

from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile
from trainctl.base.parallel import map_ordered
from trainctl.base.protocol.method import NodeCacheRequest
from trainctl.base.protocol.weights import CachedListing, CacheListingsResponse
from trainctl.node.cache.eviction import CacheEntry, CacheEviction, CacheInventory
from trainctl.node.cache.holds import CacheHolds, space_lock
from trainctl.node.cache.listings import ListingTrees
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Mapping[str, Any]], None]
_MAX_THREADS = 8
_EVENT_SECONDS = 0.2

OK, EVICTED, CORRUPT = "ok", "evicted", "corrupt"


def cache_verify(request: NodeCacheRequest, emit: Emit) -> CacheListingsResponse:
    """Hash all listings that are complete or in use; remove trees with corrupt files.

    ``outcome`` of a listing: ``ok``, ``evicted``, or ``corrupt`` if a live run holds it: then only its completion
    marker is removed. ``corrupt_files`` lists its corrupt files. Unreferenced blobs are removed.
    """
    layout = layout_of(request)
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    for directory in (layout.partial, layout.locks, layout.trees, layout.completion_markers):
        make_directory(directory)
    held = CacheHolds(layout).live_holds()
    listings = [
        listing
        for listing in CacheInventory(layout).listings()
        if listing.is_complete or (listing.id in held and layout.tree(listing.id).is_dir())
    ]
    unique = {file.sha256: file for entry in listings for file in entry.unique_files}.values()
    total = sum(file.size for file in unique)
    corrupt: List[ListedFile] = []
    hashed, reported = 0, 0.0
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    for file, is_intact in map_ordered(layout.files.verify, unique, threads):
        corrupt += [] if is_intact else [file]
        hashed += file.size
        now = time.monotonic()
        if now - reported >= _EVENT_SECONDS or hashed >= total:
            reported = now
            emit({"done": hashed, "total": total})
    digests = {file.sha256 for file in corrupt}
    results = [_verify_listing(layout, entry, digests) for entry in listings]
    for file in corrupt:
        if not layout.files.verify(file):  # still corrupt, after clearing all markers
            layout.files.remove(file)
    with space_lock(layout):
        freed = CacheEviction(layout, CacheInventory(layout).listings()).remove_orphans()
    freed += sum(size for _, size in results)
    return {"listings": [row for row, _ in results], "bytes": hashed, "freed": freed}


def _verify_listing(
    layout: Layout, entry: CacheEntry, corrupt: AbstractSet[str]
) -> Tuple[CachedListing, int]:
    """Check one listing, clear or remove it if corrupt; report the outcome and the bytes freed."""
    listing, trees = entry.listing, ListingTrees(layout)
    row: CachedListing = {**entry.row(), "detail": "", "corrupt_files": []}
    with FileLease(layout.locks / f"listing-{entry.id}.lock"):
        if not layout.tree(entry.id).is_dir() and not trees.is_complete(entry.id):
            return {**row, "outcome": EVICTED, "detail": "evicted during verification"}, 0
        if listing is None:
            row["detail"] = "its listing is missing"
        else:
            trees.adopt(listing)
            row["corrupt_files"] = trees.corrupt_files(listing, corrupt)
            if not row["corrupt_files"] and trees.is_intact(listing, thoroughly=True):
                return {**row, "outcome": OK}, 0
            row["detail"] = "the next delivery fetches it again"
        with contextlib.suppress(FileNotFoundError):
            layout.completion_marker(entry.id).unlink()
        if CacheHolds(layout).is_needed(entry.id):
            return {**row, "outcome": CORRUPT}, 0
        return {**row, "outcome": EVICTED}, trees.remove(entry.id)
