"""What a node serves to its peers: whole contents, and verified chunks of those that are being fetched."""

from __future__ import annotations

import os
import stat
import time
from typing import BinaryIO, Dict, Iterator, Optional, Set

from trainctl.base.files import names_in
from trainctl.base.listing import Listing
from trainctl.node.cache.reservations import reserved_listings
from trainctl.node.cache.trees import Trees
from trainctl.node.content.listing import load
from trainctl.node.content.parts import lengths_of, to_hex
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.shelf import Opened, Shelf, open_blob
from trainctl.store.files import STEP_BYTES, VERIFIED, readable, stamp

_FRESH_SECONDS = 0.5


class CacheShelf(Shelf):
    """The cache of a node. It tells what is there and what is coming, and changes nothing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._reserved: Dict[str, Set[str]] = {}
        self._looked = -_FRESH_SECONDS

    def open(
        self, sha256: str, offset: int, length: Optional[int], near: Optional[Opened] = None
    ) -> Optional[Opened]:
        """See Shelf. Whoever gets it verifies it, as a map may say more than a disk has kept."""
        found = open_blob(self._layout.files.blob(sha256))
        if found is not None:
            return Opened.file(found)
        count = 0 if length is None else readable(self._layout.files.marks(sha256), offset, length)
        found = open_blob(self._layout.files.part(sha256))
        if found is None:  # it may just have got its name
            found = open_blob(self._layout.files.blob(sha256))
            return Opened.file(found) if found is not None else None
        if length is not None and count >= min(length, STEP_BYTES):
            return Opened(found, 0, offset + count, whole=False)
        if _is_stamped(found, sha256):  # one of several that get their names together
            return Opened.file(found)
        found.close()
        return None

    def coming(self, sha256: str) -> bool:
        """See Shelf. A delivery says what it will bring before it looks at anything."""
        now = time.monotonic()
        if now - self._looked > _FRESH_SECONDS:
            self._looked = now
            self._reserved = {
                listing_id: self._reserved.get(listing_id) or self._contents(listing_id)
                for listing_id in reserved_listings(self._layout)
            }
        return any(sha256 in one for one in self._reserved.values())

    def _contents(self, listing_id: str) -> Set[str]:
        listing = load(self._layout.listing(listing_id))
        return {file.sha256 for file in listing.contents} if listing else set()

    def holds(self, listing: Listing) -> str:
        """Which parts of a listing are here, as Owners reads it."""
        if Trees(self._layout).sealed(listing.id):
            return to_hex(True for _ in lengths_of(listing))
        names = set(names_in(self._layout.partial))
        return to_hex(self._present(listing, names))

    def _present(self, listing: Listing, partial: Set[str]) -> Iterator[bool]:
        for file in listing.contents:
            whole = self._layout.files.has(file.sha256)
            arriving = not whole and f"{file.sha256}.map" in partial
            known = self._layout.files.marks(file.sha256) if arriving else b""
            for number, _ in enumerate(file.chunk_ranges):
                yield whole or known[number : number + 1] == bytes([VERIFIED])


def _is_stamped(stream: BinaryIO, sha256: str) -> bool:
    found = os.fstat(stream.fileno())
    return stat.S_ISREG(found.st_mode) and found.st_mtime == stamp(sha256)
