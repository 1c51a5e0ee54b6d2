"""Verify a node's cache by hashing every byte; remove corrupt blobs."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Iterable, List, Mapping

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
    files = {file for listing in listings for file in listing.unique_files}
    verifier = _CacheVerifier(layout, emit, files)
    rows = [verifier.verify_listing(listing) for listing in listings]
    for file in verifier.corrupt:
        if not layout.files.verify(file):  # still corrupt, after clearing all markers
            layout.files.remove(file)
    with space_lock(layout):
        freed = CacheEviction(layout, CacheInventory(layout).listings()).remove_orphans()
    return {"listings": rows, "bytes": verifier.hashed, "freed": freed + verifier.freed}


class _CacheVerifier:
    """One pass: hash blobs, clear markers of corrupt listings, remove corrupt blobs."""

    def __init__(self, layout: Layout, emit: Emit, files: Iterable[ListedFile]) -> None:
        self._layout = layout
        self._trees = ListingTrees(layout)
        self.corrupt: List[ListedFile] = []
        self.hashed = self.freed = 0
        unique = {file.sha256: file for file in files}.values()
        total = sum(file.size for file in unique)
        threads, reported = min(_MAX_THREADS, os.cpu_count() or 1), 0.0
        for file, is_intact in map_ordered(layout.files.verify, unique, threads):
            self.corrupt += [] if is_intact else [file]
            self.hashed += file.size
            now = time.monotonic()
            if now - reported >= _EVENT_SECONDS or self.hashed >= total:
                reported = now
                emit({"done": self.hashed, "total": total})

    def verify_listing(self, entry: CacheEntry) -> CachedListing:
        """Check one listing, clear or remove it if corrupt, and report the outcome."""
        listing = entry.listing
        row: CachedListing = {**entry.row(), "detail": "", "corrupt_files": []}
        with FileLease(self._layout.locks / f"listing-{entry.id}.lock"):
            if not self._layout.tree(entry.id).is_dir() and not self._trees.is_complete(entry.id):
                return {**row, "outcome": EVICTED, "detail": "evicted during verification"}
            if listing is None:
                return {**row, "outcome": self._clear(entry), "detail": "its listing is missing"}
            self._trees.adopt(listing)
            corrupt_files = self._trees.corrupt_files(
                listing, {file.sha256 for file in self.corrupt}
            )
            if not corrupt_files and self._trees.is_intact(listing, thoroughly=True):
                return {**row, "outcome": OK}
            row["corrupt_files"] = corrupt_files
            detail = "the next delivery fetches it again"
            return {**row, "outcome": self._clear(entry), "detail": detail}

    def _clear(self, entry: CacheEntry) -> str:
        """Remove a tree, or only its completion marker if a live run holds it."""
        with contextlib.suppress(FileNotFoundError):
            self._layout.completion_marker(entry.id).unlink()
        if CacheHolds(self._layout).is_needed(entry.id):
            return CORRUPT
        self.freed += self._trees.remove(entry.id)
        return EVICTED
