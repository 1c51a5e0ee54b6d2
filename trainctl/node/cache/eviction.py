"""Take listings and blobs out of a node's cache. The order is an invariant of DESIGN.md; the room lock is held."""

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
"""Whether a listing must stay; asked again after its seal was put aside."""


class CacheEviction:
    """Removes from one cache. ``listings`` is what was found there after the room lock was taken."""

    def __init__(self, layout: Layout, listings: Sequence[CacheEntry]) -> None:
        self._layout = layout
        self._trees = ListingTrees(layout)
        self._listings = {listing.id: listing for listing in listings}
        self._unfinished: Dict[str, Set[str]] = {
            listing.id: {file.sha256 for file in listing.unique_files}
            for listing in listings
            if not listing.is_complete
        }
        self._reserved = {file.sha256 for file in reservations(layout)}

    def listing(self, kept: CacheEntry, needed: NeededFn) -> Optional[int]:
        """Remove a listing's seal, tree, references and what only it used; the bytes freed, or None if it stays."""
        if needed(kept.id):
            return None
        lock = FileLease(self._layout.locks / f"listing-{kept.id}.lock")
        if not lock.try_acquire():
            return None  # somebody is delivering it
        try:
            contents = kept.unique_files  # nobody knows them when it is gone
            self._trees.restore_marker(kept.id)
            self._trees.clear_completion(kept.id)
            if needed(kept.id):
                self._trees.restore_marker(kept.id)
                return None
            freed = self._trees.remove(kept.id)
            self._unfinished.pop(kept.id, None)
            self._listings.pop(kept.id, None)  # so that it names nothing any more
            freed += self.unlinked(file.sha256 for file in contents)
            # Until here whoever comes after one who was killed knows what it was.
            self._trees.restore_marker(kept.id)
            CacheReferences(self._layout).drop_listing(kept.id)
        finally:
            lock.release()
        return freed

    def unlinked(self, digests: Iterable[str]) -> int:
        """Remove those contents that no tree links, no delivery brings and no unfinished one left for later."""
        freed = 0
        for digest in (one for one in digests if not self._is_wanted(one)):
            freed += _remove_unlinked(self._layout.files.blob(digest))
            freed += _remove_unlinked(self._layout.files.part(digest))
            _remove_unlinked(self._layout.files.map(digest))  # no content, so never counted as used
        return freed

    def remove_orphans(self) -> int:
        """Remove contents that no listing names, and trees that somebody was killed while making or removing; the bytes freed."""
        freed = 0
        for name in list_names(self._layout.partial):
            if name.startswith(REMOVED):
                freed += remove_tree(self._layout.partial / name)
            elif name.startswith(STAGE):
                freed += self._unknown_stage(name[len(STAGE) :])
        for listing_id in {Path(name).stem for name in list_names(self._layout.listings)}:
            if listing_id not in self._listings:
                CacheReferences(self._layout).drop_document(listing_id)
        named = {
            file.sha256 for listing in self._listings.values() for file in listing.unique_files
        }
        return freed + self.unlinked(
            content for content in self._contents() if content not in named
        )

    def _unknown_stage(self, listing_id: str) -> int:
        """Remove the beginning of a tree that nobody refers to any more and nobody is at."""
        lock = FileLease(self._layout.locks / f"listing-{listing_id}.lock")
        if listing_id in self._listings or not lock.try_acquire():
            return 0
        try:
            return remove_tree(self._layout.partial / f"{STAGE}{listing_id}")
        finally:
            lock.release()

    def _contents(self) -> Iterator[str]:
        yield from (path.name for path in self._layout.blobs.glob("*/*"))
        yield from (path.stem for path in self._layout.partial.glob("*.part"))
        yield from (path.stem for path in self._layout.partial.glob("*.map"))

    def _is_wanted(self, digest: str) -> bool:
        return digest in self._reserved or any(
            digest in contents for contents in self._unfinished.values()
        )


def _remove_unlinked(name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(name)  # noqa: PTH116 - millions
        if found.st_nlink == 1:
            os.unlink(name)  # noqa: PTH108
            return found.st_size
    return 0


def cache_evict(request: CacheEvictRequest, emit: Emit) -> CacheListingsResponse:
    """Evict the named listings, or all, but what live runs lease or a delivery is at; ``dry_run`` only says so."""
    layout = layout_of(request)
    names, dry_run = request["listings"], request["dry_run"]
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    make_directory(layout.locks)
    with space_lock(layout):
        inventory = CacheInventory(layout)
        listings = inventory.listings()
        chosen = listings if names is None else _select_listings(listings, names)
        here = {kept.id for kept in chosen if inventory.holds(kept)}
        removal = CacheEviction(layout, listings)
        leases = CacheLeases(layout)
        rows: List[CacheListingRow] = []
        freed = 0
        for kept in chosen:
            holders = leases.live().get(kept.id, [])
            gone = None if dry_run else removal.listing(kept, leases.need)
            freed += gone or 0
            if kept.id in here:
                rows.append(_row(kept, [leases.describe(key) for key in holders], gone, dry_run))
        if names is None and not dry_run:
            freed += removal.remove_orphans()
    return {"listings": rows, "bytes": 0, "freed": freed}


def _select_listings(listings: List[CacheEntry], names: List[str]) -> List[CacheEntry]:
    """The listings whose ids begin with one of the names."""
    for name in names:
        if len(name) < _SHORTEST_PREFIX:
            raise Failure("request", f"{name!r} is no id of a listing, nor the beginning of one")
    return [listing for listing in listings if listing.id.startswith(tuple(names))]


def _row(
    kept: CacheEntry, holders: List[str], gone: Optional[int], dry_run: bool
) -> CacheListingRow:
    outcome = LEASED if holders else EVICTED if dry_run or gone is not None else BUSY
    return {
        "id": kept.id,
        "source": kept.source,
        "files": kept.files,
        "bytes": kept.size,
        "last_used": kept.last_used or None,
        "leased_by": holders,
        "outcome": outcome,
    }
