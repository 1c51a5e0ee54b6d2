"""Inventory of the node's cache: listings and disk usage, each inode counted once."""

from __future__ import annotations

import contextlib
import os
import stat
from functools import cached_property
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from trainctl.base.filesystem.files import list_names, read_json
from trainctl.base.listing import ListedFile, Listing
from trainctl.node.cache.listings import CacheReferences, load_listing
from trainctl.node.system.layout import Layout


class CacheEntry:
    """A listing in the cache; ``marker`` is its completion marker, also if moved."""

    def __init__(
        self, layout: Layout, listing_id: str, marker: Mapping[str, Any], last_used: float
    ) -> None:
        self.id = listing_id
        self.source = str(marker.get("source", ""))
        self.last_used = last_used
        self.is_complete = layout.completion_marker(listing_id).exists()
        self._marker = marker
        self._document = layout.listing(listing_id)

    @cached_property
    def listing(self) -> Optional[Listing]:
        """The listing; None if its document is missing or corrupt."""
        return load_listing(self._document)

    @property
    def unique_files(self) -> Sequence[ListedFile]:
        """One file for each distinct blob."""
        return self.listing.unique_files if self.listing else ()

    @property
    def files(self) -> int:
        """Number of files."""
        count = self._marker.get("files")
        return count if isinstance(count, int) else len(self.listing.files) if self.listing else 0

    @property
    def size(self) -> int:
        """Size in bytes."""
        size = self._marker.get("bytes")
        return size if isinstance(size, int) else self.listing.size if self.listing else 0


class CacheInventory:
    """Listings and sizes of one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references = CacheReferences(layout)

    def listings(self) -> List[CacheEntry]:
        """All listings with a tree, marker or reference, least recently used first."""
        marked = {Path(name).stem for name in list_names(self._layout.completion_markers)}
        ids = {*self._references.listings(), *marked, *list_names(self._layout.trees)}
        entries = [self._entry(listing_id) for listing_id in ids if not listing_id.startswith(".")]
        return sorted(entries, key=lambda entry: (entry.last_used, entry.id))

    def _entry(self, listing_id: str) -> CacheEntry:
        layout = self._layout
        paths = (layout.completion_marker(listing_id), layout.pending_marker(listing_id))
        marker = next(filter(None, map(read_json, paths)), {})
        return CacheEntry(layout, listing_id, marker, self._references.last_used(listing_id))

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
