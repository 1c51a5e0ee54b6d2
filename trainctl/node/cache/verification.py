"""Verify a node's cache by hashing every byte; remove corrupt blobs."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Iterable, Mapping, Set

from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile
from trainctl.base.parallel import map_ordered
from trainctl.base.protocol.method import NodeCacheRequest
from trainctl.base.protocol.weights import CacheListingRow, CacheListingsResponse
from trainctl.node.cache.eviction import CacheEviction
from trainctl.node.cache.inventory import CacheEntry, CacheInventory
from trainctl.node.cache.leases import CacheLeases, space_lock
from trainctl.node.cache.trees import ListingTrees
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Mapping[str, Any]], None]
_MAX_THREADS = 8
_EVENT_SECONDS = 0.2

OK, EVICTED, CORRUPT = "ok", "evicted", "corrupt"


def cache_verify(request: NodeCacheRequest, emit: Emit) -> CacheListingsResponse:
    """Hash all listings that are complete or in use; remove trees with corrupt files.

    ``outcome`` of a listing: ``ok``, ``evicted``, or ``corrupt`` if a live run leases it: then only its completion
    marker is removed. ``corrupt_files`` lists its corrupt files. Unreferenced blobs are removed.
    """
    layout = layout_of(request)
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    for directory in (layout.partial, layout.locks, layout.trees, layout.completion_markers):
        make_directory(directory)
    leased = CacheLeases(layout).live_leases()
    listings = [
        listing
        for listing in CacheInventory(layout).listings()
        if listing.is_complete or (listing.id in leased and layout.tree(listing.id).is_dir())
    ]
    files = {file for listing in listings for file in listing.unique_files}
    verifier = _CacheVerifier(layout, emit, files)
    rows = [verifier.verify_listing(listing) for listing in listings]
    verifier.remove_corrupt()
    with space_lock(layout):
        freed = CacheEviction(layout, CacheInventory(layout).listings()).remove_orphans()
    return {"listings": rows, "bytes": verifier.hashed, "freed": freed + verifier.freed}


class _CacheVerifier:
    """One pass: hash blobs, clear markers of corrupt listings, remove corrupt blobs."""

    def __init__(self, layout: Layout, emit: Emit, files: Iterable[ListedFile]) -> None:
        self._layout = layout
        self._emit = emit
        self._trees = ListingTrees(layout)
        self._files = {file.sha256: file for file in files}
        self._corrupt: Set[str] = set()
        self.hashed = self.freed = 0
        self._hash_all()

    def verify_listing(self, entry: CacheEntry) -> CacheListingRow:
        """Check one listing, clear or remove it if corrupt, and report the outcome."""
        listing = entry.listing
        row: CacheListingRow = {
            "id": entry.id,
            "source": entry.source,
            "detail": "",
            "corrupt_files": [],
            "files": len(listing.files) if listing else 0,
            "bytes": listing.size if listing else 0,
        }
        with FileLease(self._layout.locks / f"listing-{entry.id}.lock"):
            if not self._layout.tree(entry.id).is_dir() and not self._trees.is_complete(entry.id):
                return {**row, "outcome": EVICTED, "detail": "evicted during verification"}
            if listing is None:
                return {**row, "outcome": self._clear(entry), "detail": "its listing is missing"}
            self._trees.adopt(listing)
            corrupt_files = self._trees.corrupt_files(listing, self._corrupt)
            if not corrupt_files and self._trees.is_intact(listing, thoroughly=True):
                return {**row, "outcome": OK}
            row["corrupt_files"] = corrupt_files
            detail = "the next delivery fetches it again"
            return {**row, "outcome": self._clear(entry), "detail": detail}

    def remove_corrupt(self) -> None:
        """Remove blobs that are still corrupt, after clearing all markers."""
        for sha256 in self._corrupt:
            if not self._layout.files.verify(self._files[sha256]):
                self._layout.files.remove(self._files[sha256])

    def _hash_all(self) -> None:
        total = sum(file.size for file in self._files.values())
        threads, reported = min(_MAX_THREADS, os.cpu_count() or 1), 0.0
        files = self._layout.files
        for file, is_intact in map_ordered(files.verify, self._files.values(), threads):
            if not is_intact:
                self._corrupt.add(file.sha256)
            self.hashed += file.size
            now = time.monotonic()
            if now - reported >= _EVENT_SECONDS or self.hashed >= total:
                reported = now
                self._emit({"done": self.hashed, "total": total})

    def _clear(self, entry: CacheEntry) -> str:
        """Remove a tree, or only its completion marker if a live run leases it."""
        with contextlib.suppress(FileNotFoundError):
            self._layout.completion_marker(entry.id).unlink()
        if CacheLeases(self._layout).is_needed(entry.id):
            return CORRUPT
        self.freed += self._trees.remove(entry.id)
        return EVICTED
