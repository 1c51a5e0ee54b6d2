"""Inventory of the node's cache, and removal of listings and blobs from it. Order of steps: see DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import stat
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    cast,
)

from trainctl.base.filesystem.files import list_names, make_directory, read_json, remove_tree
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.protocol.weights import CachedListing, CacheEvictRequest, CacheListingsResponse
from trainctl.errors import NodeError
from trainctl.node.cache.holds import CacheHolds, reservations, space_lock
from trainctl.node.cache.listings import REMOVED, STAGE, CacheReferences, ListingTrees, load_listing
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
        with lock:
            files = entry.unique_files  # read before the document is removed
            self._trees.restore_marker(entry.id)
            with contextlib.suppress(FileNotFoundError):  # so that no run starts to use the tree
                marker = self._layout.completion_marker(entry.id)
                marker.replace(self._layout.pending_marker(entry.id))
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
        return freed

    def remove_unlinked(self, digests: Iterable[str]) -> int:
        """Remove blobs that no tree links and no incomplete or reserved listing needs."""
        freed = 0
        for digest in digests:
            if digest in self._reserved or any(digest in it for it in self._incomplete.values()):
                continue
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
            elif name.startswith(STAGE) and name[len(STAGE) :] not in self._listings:
                lock = FileLease(self._layout.locks / f"listing-{name[len(STAGE) :]}.lock")
                if lock.try_acquire():  # it is not being built
                    with lock:
                        freed += remove_tree(self._layout.partial / name)
        for listing_id in {Path(name).stem for name in list_names(self._layout.listings)}:
            if listing_id not in self._listings:
                CacheReferences(self._layout).drop_document(listing_id)
        named = {
            file.sha256 for listing in self._listings.values() for file in listing.unique_files
        }
        stored = chain(
            (path.name for path in self._layout.blobs.glob("*/*")),
            (path.stem for path in self._layout.partial.glob("*.part")),
            (path.stem for path in self._layout.partial.glob("*.map")),
        )
        return freed + self.remove_unlinked(digest for digest in stored if digest not in named)


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
    short = [name for name in names or () if len(name) < _SHORTEST_PREFIX]
    if short:
        reason = f"shorter than {_SHORTEST_PREFIX} characters"
        raise NodeError(f"invalid listing id {short[0]!r}: {reason}")
    if not layout.cache.is_dir():
        return {"listings": [], "bytes": 0, "freed": 0}
    make_directory(layout.locks)
    with space_lock(layout):
        inventory = CacheInventory(layout)
        listings = inventory.listings()
        selected = [
            entry for entry in listings if names is None or entry.id.startswith(tuple(names))
        ]
        stored = {entry.id for entry in selected if inventory.holds(entry)}
        eviction = CacheEviction(layout, listings)
        holds = CacheHolds(layout)
        rows: List[CachedListing] = []
        freed = 0
        for entry in selected:
            holders = holds.live_holds().get(entry.id, [])
            size = None if dry_run else eviction.remove_listing(entry, holds.is_needed)
            freed += size or 0
            if entry.id in stored:
                is_evicted = dry_run or size is not None
                row = entry.row()
                row["leased_by"] = [holds.describe(key) for key in holders]
                row["outcome"] = LEASED if holders else EVICTED if is_evicted else BUSY
                rows.append(row)
        if names is None and not dry_run:
            freed += eviction.remove_orphans()
    return {"listings": rows, "bytes": 0, "freed": freed}


class CacheEntry:
    """A listing in the cache."""

    def __init__(self, layout: Layout, listing_id: str) -> None:
        self.id = listing_id
        self.last_used = CacheReferences(layout).last_used(listing_id)
        marker = layout.completion_marker(listing_id)
        self._about = read_json(marker) or read_json(layout.pending_marker(listing_id))
        self.is_complete = marker.exists()
        self._document = layout.listing(listing_id)

    @cached_property
    def listing(self) -> Optional[Listing]:
        """The listing; None if its document is missing or corrupt."""
        return load_listing(self._document)

    @property
    def unique_files(self) -> Sequence[ListedFile]:
        """One file for each distinct blob."""
        return self.listing.unique_files if self.listing else ()

    def row(self) -> CachedListing:
        """Report the listing, by its completion marker if there is one."""
        about = self._about
        if about is None:
            listing = self.listing or Listing(())
            about = {"files": len(listing.files), "bytes": listing.size, "source": ""}
        row = {"id": self.id, **about, "last_used": self.last_used or None}
        return cast("CachedListing", row)


class CacheInventory:
    """Listings and sizes of one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def listings(self) -> List[CacheEntry]:
        """All listings with a tree, marker or reference, least recently used first."""
        marked = {Path(name).stem for name in list_names(self._layout.completion_markers)}
        referenced = CacheReferences(self._layout).listings()
        ids = {*referenced, *marked, *list_names(self._layout.trees)}
        entries = [CacheEntry(self._layout, name) for name in ids if not name.startswith(".")]
        return sorted(entries, key=lambda entry: (entry.last_used, entry.id))

    def holds(self, entry: CacheEntry) -> bool:
        """Check whether any bytes of the listing are stored."""
        exists = self._layout.tree(entry.id).exists()
        return exists or any(self.sizes_of(file.sha256)[0] for file in entry.unique_files)

    def used(self) -> int:
        """Bytes of all blobs, complete or not, linked or not, without chunk maps."""
        linked: Set[Tuple[int, int]] = set()
        total = 0
        for _, status in _files_below(str(self._layout.blobs)):
            total += status.st_size
            if status.st_nlink > 1:
                linked.add((status.st_dev, status.st_ino))
        maps = {str(path) for path in self._layout.partial.glob("*.map")}
        for directory in (self._layout.partial, self._layout.trees):
            is_partial = directory == self._layout.partial
            for name, status in _files_below(str(directory)):
                inode = (status.st_dev, status.st_ino)
                if name not in maps and inode not in linked:
                    if status.st_nlink > 1:
                        linked.add(inode)
                    total += _allocated_bytes(status) if is_partial else status.st_size
        return total

    def present(self, digests: Iterable[str]) -> int:
        """Stored bytes of the blobs with these digests, complete or not."""
        return sum(self.sizes_of(digest)[0] for digest in digests)

    def sizes_of(self, sha256: str) -> Tuple[int, int]:
        """Stored bytes of a blob, and how many of them have allocated disk blocks."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._layout.files.blob(sha256))  # noqa: PTH116 - called for millions of files
            return status.st_size, status.st_size
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._layout.files.part(sha256))  # noqa: PTH116
            return _allocated_bytes(status), status.st_blocks * 512
        return 0, 0


def _allocated_bytes(status: os.stat_result) -> int:
    """Bytes of a sparse file: chunks arrive in any order."""
    return min(status.st_size, status.st_blocks * 512)


def _files_below(path: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Walk all regular files lazily: one directory may hold millions."""
    directories = [path]
    while directories:
        try:
            entries = os.scandir(directories.pop())
        except OSError:  # removed meanwhile
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield entry.path, status
