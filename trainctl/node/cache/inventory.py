"""What lies in the node's cache: listings with what they need, and bytes, each inode counted once."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from trainctl.node.cache.references import References
from trainctl.node.cache.trees import Trees
from trainctl.node.content.listing import File, Listing, parse
from trainctl.node.system.failure import Failure
from trainctl.node.system.files import names_in, read_json
from trainctl.node.system.layout import Layout


class Kept(NamedTuple):
    """A listing of which something may be here. ``listing`` is None where nobody knows any more what it was."""

    id: str
    listing: Optional[Listing]
    source: str
    sealed: bool
    last_used: float

    @property
    def contents(self) -> Mapping[str, File]:
        """Its files by content."""
        return self.listing.contents if self.listing else {}


class Inventory:
    """A look at one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references = References(layout)
        self._trees = Trees(layout)

    def listings(self) -> List[Kept]:
        """Every listing that has a tree, a seal or a reference; the one that was used longest ago first."""
        documents = self._references.listings()
        seals = {Path(name).stem for name in names_in(self._layout.seals)}
        ids = {*documents, *seals, *names_in(self._layout.trees)}
        found = [self._kept(one, documents.get(one)) for one in ids if not one.startswith(".")]
        return sorted(found, key=lambda kept: (kept.last_used, kept.id))

    def _kept(self, listing_id: str, document: Any) -> Kept:
        seal = self._trees.seal_of(listing_id)
        written = seal or read_json(self._layout.unsealed(listing_id)) or {}
        listing = _parsed(document) or _parsed(written.get("document"))
        return Kept(
            listing_id,
            listing if listing and listing.id == listing_id else None,
            str(written.get("source", "")),
            seal is not None,
            self._references.last_used(listing_id),
        )

    def holds(self, kept: Kept) -> bool:
        """Whether anything of the listing is here, whole or not."""
        return self._layout.tree(kept.id).exists() or self.present(kept.contents) > 0

    def used(self) -> int:
        """All bytes of content here, whole or not, linked or not. Maps of chunks are no content."""
        seen: Set[Tuple[int, int]] = set()
        maps = {str(path) for path in self._layout.partial.glob("*.map")}
        total = 0
        for place in (self._layout.blobs, self._layout.partial, self._layout.trees):
            for name, found in _files_below(str(place)):
                if name not in maps and (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_size if place != self._layout.partial else _written(found)
        return total

    def present(self, digests: Iterable[str]) -> int:
        """The bytes of these contents that are here, whole or not."""
        return sum(self.sizes_of(one)[0] for one in digests)

    def sizes_of(self, sha256: str) -> Tuple[int, int]:
        """How much of a content is here: bytes, and those of them that the disk has set aside for good."""
        for path in (self._layout.blob(sha256), self._layout.part(sha256)):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            if path.suffix != ".part":
                return found.st_size, found.st_size
            return _written(found), found.st_blocks * 512
        return 0, 0


def _parsed(document: Any) -> Optional[Listing]:
    try:
        return parse(document) if document is not None else None
    except Failure:
        return None


def _written(found: os.stat_result) -> int:
    """The bytes of a file that may have holes, as its chunks come in any order."""
    return min(found.st_size, found.st_blocks * 512)


def _files_below(place: str) -> Iterator[Tuple[str, os.stat_result]]:
    for directory, _, names in os.walk(place):
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path, found
