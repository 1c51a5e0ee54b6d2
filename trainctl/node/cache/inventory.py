"""What lies in the node's cache: listings with what they need, and bytes, each inode counted once."""

from __future__ import annotations

import contextlib
import os
import stat
from functools import cached_property
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.files import names_in
from trainctl.node.cache.references import References
from trainctl.node.content.listing import File, Listing, read_stored
from trainctl.node.content.stored import read_about
from trainctl.node.system.layout import Layout
from trainctl.node.system.numbers import Numbers


class Kept:
    """A listing of which something may be here. ``places``: files that have its document, which is read when it is asked for."""

    def __init__(
        self, listing_id: str, about: Mapping[str, Any], places: Sequence[Path], last_used: float
    ) -> None:
        self.id = listing_id
        self.source = str(about.get("source", ""))
        self.last_used = last_used
        self._about = about
        self._places = places

    @property
    def sealed(self) -> bool:
        """Whether its tree is whole, going by its seal."""
        return bool(self._about.get("sealed"))

    @cached_property
    def listing(self) -> Optional[Listing]:
        """None where nobody knows any more what it was."""
        found = (read_stored(place) for place in self._places)
        return next((one for one in found if one is not None and one.id == self.id), None)

    @property
    def contents(self) -> Sequence[File]:
        """Its files, one for each content."""
        return self.listing.contents if self.listing else ()

    @property
    def files(self) -> int:
        """How many files it has."""
        known = self._about.get("files")
        return known if isinstance(known, int) else len(self.listing.files) if self.listing else 0

    @property
    def size(self) -> int:
        """Their bytes."""
        known = self._about.get("bytes")
        return known if isinstance(known, int) else self.listing.size if self.listing else 0


class Inventory:
    """A look at one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references = References(layout)

    def listings(self) -> List[Kept]:
        """Every listing that has a tree, a seal or a reference; the one that was used longest ago first."""
        places = self._references.listings()
        seals = {Path(name).stem for name in names_in(self._layout.seals)}
        ids = {*places, *seals, *names_in(self._layout.trees)}
        found = [self._kept(one, places.get(one)) for one in ids if not one.startswith(".")]
        return sorted(found, key=lambda kept: (kept.last_used, kept.id))

    def _kept(self, listing_id: str, place: Optional[Path]) -> Kept:
        seal, aside = self._layout.seal(listing_id), self._layout.unsealed(listing_id)
        about = read_about(seal)
        if about is not None:
            about["sealed"] = True
        places = [one for one in (place, seal, aside) if one is not None]
        last_used = self._references.last_used(listing_id)
        return Kept(listing_id, about or read_about(aside) or {}, places, last_used)

    def holds(self, kept: Kept) -> bool:
        """Whether anything of the listing is here, whole or not."""
        here = self._layout.tree(kept.id).exists()
        return here or any(self.sizes_of(file.sha256)[0] for file in kept.contents)

    def used(self) -> int:
        """All bytes of content here, whole or not, linked or not. Maps of chunks are no content."""
        linked, total = Numbers(), 0
        for _, found in _files_below(str(self._layout.blobs)):
            total += found.st_size
            if found.st_nlink > 1:
                linked.add(_inode(found))
        maps = {str(path) for path in self._layout.partial.glob("*.map")}
        for place in (self._layout.partial, self._layout.trees):
            for name, found in _files_below(str(place)):
                if name not in maps and (found.st_nlink == 1 or linked.add(_inode(found))):
                    total += found.st_size if place != self._layout.partial else _written(found)
        return total

    def present(self, digests: Iterable[str]) -> int:
        """The bytes of these contents that are here, whole or not."""
        return sum(self.sizes_of(one)[0] for one in digests)

    def sizes_of(self, sha256: str) -> Tuple[int, int]:
        """How much of a content is here: bytes, and those of them that the disk has set aside for good."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._layout.blob_name(sha256))  # noqa: PTH116 - millions
            return found.st_size, found.st_size
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._layout.part_name(sha256))  # noqa: PTH116
            return _written(found), found.st_blocks * 512
        return 0, 0


def _inode(found: os.stat_result) -> int:
    """What tells a file from others, whatever its names are, in 8 bytes: there may be a million."""
    return (found.st_dev << 48 ^ found.st_ino) % 2**64


def _written(found: os.stat_result) -> int:
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
