"""Verify a node's cache: every byte is hashed again. What is wrong is removed; the next delivery fetches it."""

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
    """Hash every listing that is sealed or in use here; the tree of a listing with wrong files is removed.

    Each listing has an ``outcome``: whole, dropped, or wrong if a live run leases it and so only loses its seal;
    ``corrupt_files`` names its files that were. Contents that no listing names are removed.
    """
    layout = layout_of(request)
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    for directory in (layout.partial, layout.locks, layout.trees, layout.seals):
        make_directory(directory)
    leased = CacheLeases(layout).live()
    listings = [
        listing
        for listing in CacheInventory(layout).listings()
        if listing.is_complete or (listing.id in leased and layout.tree(listing.id).is_dir())
    ]
    verifying = _CacheVerifier(
        layout, emit, {file for listing in listings for file in listing.unique_files}
    )
    rows = [verifying.listing(listing) for listing in listings]
    verifying.remove_wrong()
    with space_lock(layout):
        freed = CacheEviction(layout, CacheInventory(layout).listings()).remove_orphans()
    return {"listings": rows, "bytes": verifying.hashed, "freed": freed + verifying.freed}


class _CacheVerifier:
    """One pass over a cache: content is hashed, then listings with wrong content lose their seals, then it is removed."""

    def __init__(self, layout: Layout, emit: Emit, files: Iterable[ListedFile]) -> None:
        self._layout = layout
        self._emit = emit
        self._trees = ListingTrees(layout)
        self._contents = {file.sha256: file for file in files}
        self._wrong: Set[str] = set()
        self.hashed = self.freed = 0
        self._hash_all()

    def listing(self, kept: CacheEntry) -> CacheListingRow:
        """What became of one listing."""
        row: CacheListingRow = {
            "id": kept.id,
            "source": kept.source,
            "detail": "",
            "corrupt_files": [],
        }
        files, size = (len(kept.listing.files), kept.listing.size) if kept.listing else (0, 0)
        row["files"], row["bytes"] = files, size
        with FileLease(self._layout.locks / f"listing-{kept.id}.lock"):
            if not self._layout.tree(kept.id).is_dir() and not self._trees.is_complete(kept.id):
                return {**row, "outcome": EVICTED, "detail": "it was evicted meanwhile"}
            if kept.listing is None:
                return {**row, "outcome": self._drop(kept), "detail": "its listing is lost"}
            self._trees.adopt(kept.listing)
            corrupt_files = self._trees.corrupt_files(kept.listing, self._wrong)
            if not corrupt_files and self._trees.is_intact(kept.listing, thoroughly=True):
                return {**row, "outcome": OK}
            row["corrupt_files"] = corrupt_files
            detail = "the next delivery fetches it again"
            return {**row, "outcome": self._drop(kept), "detail": detail}

    def remove_wrong(self) -> None:
        """Remove the blobs that are still wrong: nothing says any more that they are needed and right."""
        for sha256 in self._wrong:
            if not self._layout.files.verify(self._contents[sha256]):
                self._layout.files.remove(self._contents[sha256])

    def _hash_all(self) -> None:
        total = sum(file.size for file in self._contents.values())
        threads, reported = min(_MAX_THREADS, os.cpu_count() or 1), 0.0
        files = self._layout.files
        for file, is_right in map_ordered(files.verify, self._contents.values(), threads):
            if not is_right:
                self._wrong.add(file.sha256)
            self.hashed += file.size
            now = time.monotonic()
            if now - reported >= _EVENT_SECONDS or self.hashed >= total:
                reported = now
                self._emit({"done": self.hashed, "total": total})

    def _drop(self, kept: CacheEntry) -> str:
        """Remove a tree, whose lock is held; if a live run leases it, only its seal, so that no other run begins to use it."""
        with contextlib.suppress(FileNotFoundError):
            self._layout.completion_marker(kept.id).unlink()
        if CacheLeases(self._layout).need(kept.id):
            return CORRUPT
        self.freed += self._trees.remove(kept.id)
        return EVICTED
