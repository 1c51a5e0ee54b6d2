"""What lies in the node's cache: listings with what they need, and bytes, each inode counted once."""

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
    """A listing of which something may be here; ``completion_marker`` is the seal's document, or that of a seal that was put aside."""

    def __init__(
        self,
        layout: Layout,
        listing_id: str,
        completion_marker: Mapping[str, Any],
        last_used: float,
    ) -> None:
        self.id = listing_id
        self.source = str(completion_marker.get("source", ""))
        self.last_used = last_used
        self.is_complete = layout.completion_marker(listing_id).exists()
        self._seal = completion_marker
        self._document = layout.listing(listing_id)

    @cached_property
    def listing(self) -> Optional[Listing]:
        """None if its document is lost."""
        return load_listing(self._document)

    @property
    def unique_files(self) -> Sequence[ListedFile]:
        """Its files, one for each distinct blob."""
        return self.listing.unique_files if self.listing else ()

    @property
    def files(self) -> int:
        """How many files it has."""
        known = self._seal.get("files")
        return known if isinstance(known, int) else len(self.listing.files) if self.listing else 0

    @property
    def size(self) -> int:
        """Their bytes."""
        known = self._seal.get("bytes")
        return known if isinstance(known, int) else self.listing.size if self.listing else 0


class CacheInventory:
    """A look at one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references = CacheReferences(layout)

    def listings(self) -> List[CacheEntry]:
        """Every listing that has a tree, a seal or a reference; the one that was used longest ago first."""
        seals = {Path(name).stem for name in list_names(self._layout.seals)}
        ids = {*self._references.listings(), *seals, *list_names(self._layout.trees)}
        found = [self._kept(listing_id) for listing_id in ids if not listing_id.startswith(".")]
        return sorted(found, key=lambda kept: (kept.last_used, kept.id))

    def _kept(self, listing_id: str) -> CacheEntry:
        layout = self._layout
        seals = map(
            read_json, (layout.completion_marker(listing_id), layout.pending_marker(listing_id))
        )
        completion_marker = next(filter(None, seals), {})
        return CacheEntry(
            layout, listing_id, completion_marker, self._references.last_used(listing_id)
        )

    def holds(self, kept: CacheEntry) -> bool:
        """Whether anything of the listing is here, whole or not."""
        here = self._layout.tree(kept.id).exists()
        return here or any(self.sizes_of(file.sha256)[0] for file in kept.unique_files)

    def used(self) -> int:
        """All bytes of content here, whole or not, linked or not. Maps of chunks are no content."""
        linked: Set[Tuple[int, int]] = set()
        total = 0
        for _, found in _files_below(str(self._layout.blobs)):
            total += found.st_size
            if found.st_nlink > 1:
                linked.add((found.st_dev, found.st_ino))
        maps = {str(path) for path in self._layout.partial.glob("*.map")}
        for place in (self._layout.partial, self._layout.trees):
            for name, found in _files_below(str(place)):
                inode = (found.st_dev, found.st_ino)
                if name not in maps and inode not in linked:
                    if found.st_nlink > 1:
                        linked.add(inode)
                    total += (
                        found.st_size if place != self._layout.partial else _allocated_bytes(found)
                    )
        return total

    def present(self, digests: Iterable[str]) -> int:
        """The bytes of these contents that are here, whole or not."""
        return sum(self.sizes_of(digest)[0] for digest in digests)

    def sizes_of(self, sha256: str) -> Tuple[int, int]:
        """How much of a content is here: bytes, and those of them that the disk has set aside for good."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._layout.files.blob(sha256))  # noqa: PTH116 - millions
            return found.st_size, found.st_size
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._layout.files.part(sha256))  # noqa: PTH116
            return _allocated_bytes(found), found.st_blocks * 512
        return 0, 0


def _allocated_bytes(found: os.stat_result) -> int:
    """The bytes of a file that may have holes, as its chunks come in any order."""
    return min(found.st_size, found.st_blocks * 512)


def _files_below(place: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Every regular file, with what is known of it; one directory may have millions."""
    directories = [place]
    while directories:
        try:
            entries = os.scandir(directories.pop())
        except OSError:  # it is gone
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield entry.path, found
