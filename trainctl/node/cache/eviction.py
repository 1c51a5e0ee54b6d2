"""Remove listings and blobs from a node's cache. Order of steps: see DESIGN.md."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import list_names, make_directory, remove_tree
from trainctl.base.lease import FileLease
from trainctl.base.protocol.weights import CacheEvictRequest, CacheListingRow, CacheListingsResponse
from trainctl.node.cache.inventory import CacheEntry, CacheInventory
from trainctl.node.cache.leases import CacheLeases, reservations, space_lock
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.cache.trees import REMOVED, STAGE, ListingTrees
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Dict[str, Any]], None]
_SHORTEST_PREFIX = 8
EVICTED, LEASED, BUSY = "evicted", "leased", "busy"
NeededFn = Callable[[str], bool]
"""Whether a listing must stay; called again after its completion marker was moved aside."""


class CacheEviction:
    """Removal from one cache.

    The caller holds the space lock since before it read ``listings``.
    """

    def __init__(self, layout: Layout, listings: Sequence[CacheEntry]) -> None:
        self._layout = layout
        self._trees = ListingTrees(layout)
        self._listings = {listing.id: listing for listing in listings}
        self._incomplete: Dict[str, Set[str]] = {
            listing.id: {file.sha256 for file in listing.unique_files}
            for listing in listings
            if not listing.is_complete
        }
        self._reserved = {file.sha256 for file in reservations(layout)}

    def remove_listing(self, entry: CacheEntry, is_needed: NeededFn) -> Optional[int]:
        """Remove a listing's tree, references and blobs; bytes freed, None if it stays."""
        if is_needed(entry.id):
            return None
        lock = FileLease(self._layout.locks / f"listing-{entry.id}.lock")
        if not lock.try_acquire():
            return None  # it is being delivered
        try:
            files = entry.unique_files  # read before the document is removed
            self._trees.restore_marker(entry.id)
            self._trees.clear_completion(entry.id)
            if is_needed(entry.id):
                self._trees.restore_marker(entry.id)
                return None
            freed = self._trees.remove(entry.id)
            self._incomplete.pop(entry.id, None)
            self._listings.pop(entry.id, None)  # its blobs are unreferenced from now on
            freed += self.remove_unlinked(file.sha256 for file in files)
            # The moved marker identifies the listing if this process is killed before here.
            self._trees.restore_marker(entry.id)
            CacheReferences(self._layout).drop_listing(entry.id)
        finally:
            lock.release()
        return freed

    def remove_unlinked(self, digests: Iterable[str]) -> int:
        """Remove blobs that no tree links and no incomplete or reserved listing needs."""
        freed = 0
        for digest in (digest for digest in digests if not self._is_needed(digest)):
            freed += _remove_unlinked(self._layout.files.blob(digest))
            freed += _remove_unlinked(self._layout.files.part(digest))
            _remove_unlinked(self._layout.files.map(digest))  # not counted as used
        return freed

    def remove_orphans(self) -> int:
        """Remove unreferenced blobs and remains of interrupted operations; bytes freed."""
        freed = 0
        for name in list_names(self._layout.partial):
            if name.startswith(REMOVED):
                freed += remove_tree(self._layout.partial / name)
            elif name.startswith(STAGE):
                freed += self._remove_stage(name[len(STAGE) :])
        for listing_id in {Path(name).stem for name in list_names(self._layout.listings)}:
            if listing_id not in self._listings:
                CacheReferences(self._layout).drop_document(listing_id)
        named = {
            file.sha256 for listing in self._listings.values() for file in listing.unique_files
        }
        return freed + self.remove_unlinked(
            digest for digest in self._stored_digests() if digest not in named
        )

    def _remove_stage(self, listing_id: str) -> int:
        """Remove a partly built tree that is unreferenced and not being built."""
        lock = FileLease(self._layout.locks / f"listing-{listing_id}.lock")
        if listing_id in self._listings or not lock.try_acquire():
            return 0
        try:
            return remove_tree(self._layout.partial / f"{STAGE}{listing_id}")
        finally:
            lock.release()

    def _stored_digests(self) -> Iterator[str]:
        yield from (path.name for path in self._layout.blobs.glob("*/*"))
        yield from (path.stem for path in self._layout.partial.glob("*.part"))
        yield from (path.stem for path in self._layout.partial.glob("*.map"))

    def _is_needed(self, digest: str) -> bool:
        return digest in self._reserved or any(
            digest in digests for digests in self._incomplete.values()
        )


def _remove_unlinked(name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(name)  # noqa: PTH116 - called for millions of files
        if status.st_nlink == 1:
            os.unlink(name)  # noqa: PTH108
            return status.st_size
    return 0


def cache_evict(request: CacheEvictRequest, emit: Emit) -> CacheListingsResponse:
    """Evict the named listings, or all; those in use stay. ``dry_run`` only reports."""
    layout = layout_of(request)
    names, dry_run = request["listings"], request["dry_run"]
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    make_directory(layout.locks)
    with space_lock(layout):
        inventory = CacheInventory(layout)
        listings = inventory.listings()
        selected = listings if names is None else _select_listings(listings, names)
        stored = {entry.id for entry in selected if inventory.holds(entry)}
        eviction = CacheEviction(layout, listings)
        leases = CacheLeases(layout)
        rows: List[CacheListingRow] = []
        freed = 0
        for entry in selected:
            holders = leases.live_leases().get(entry.id, [])
            size = None if dry_run else eviction.remove_listing(entry, leases.is_needed)
            freed += size or 0
            if entry.id in stored:
                names_of_holders = [leases.describe(key) for key in holders]
                rows.append(_row(entry, names_of_holders, is_evicted=dry_run or size is not None))
        if names is None and not dry_run:
            freed += eviction.remove_orphans()
    return {"listings": rows, "bytes": 0, "freed": freed}


def _select_listings(listings: List[CacheEntry], names: List[str]) -> List[CacheEntry]:
    """Select the listings whose ids begin with one of the names."""
    for name in names:
        if len(name) < _SHORTEST_PREFIX:
            raise Failure(
                "request",
                f"invalid listing id {name!r}: shorter than {_SHORTEST_PREFIX} characters",
            )
    return [listing for listing in listings if listing.id.startswith(tuple(names))]


def _row(entry: CacheEntry, holders: List[str], *, is_evicted: bool) -> CacheListingRow:
    return {
        "id": entry.id,
        "source": entry.source,
        "files": entry.files,
        "bytes": entry.size,
        "last_used": entry.last_used or None,
        "leased_by": holders,
        "outcome": LEASED if holders else EVICTED if is_evicted else BUSY,
    }
