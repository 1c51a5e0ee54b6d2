"""What a node serves to its peers: whole contents, and verified chunks of those that are being fetched."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import BinaryIO, Dict, Iterator, Optional, Set

from trainctl.base.files import names_in
from trainctl.node.cache.reservations import living
from trainctl.node.cache.trees import Trees
from trainctl.node.content.blobs import stamp
from trainctl.node.content.chunk_map import STEP_BYTES, VERIFIED, here
from trainctl.node.content.digests import Digests
from trainctl.node.content.listing import Listing
from trainctl.node.content.parts import lengths_of, to_hex
from trainctl.node.content.sizes import sizes_in
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.shelf import Opened, Shelf, open_blob

_FRESH_SECONDS = 0.5


class CacheShelf(Shelf):
    """The cache of a node. It tells what is there and what is coming, and changes nothing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._reserved: Dict[Path, Digests] = {}
        self._looked = -_FRESH_SECONDS

    def open(
        self, sha256: str, offset: int, length: Optional[int], near: Optional[Opened] = None
    ) -> Optional[Opened]:
        """See Shelf. Whoever gets it verifies it, as a map may say more than a disk has kept."""
        found = open_blob(self._layout.blob_name(sha256))
        if found is not None:
            return Opened.file(found)
        count = 0 if length is None else here(self._map(sha256), offset, length)
        found = open_blob(self._layout.part_name(sha256))
        if found is None:  # it may just have got its name
            found = open_blob(self._layout.blob_name(sha256))
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
                path: self._reserved.get(path) or Digests(name for name, _ in sizes_in(path))
                for path in living(self._layout)
            }
        return any(sha256 in one for one in self._reserved.values())

    def holds(self, listing: Listing) -> str:
        """Which parts of a listing are here, as Owners reads it."""
        if Trees(self._layout).sealed(listing.id):
            return to_hex(True for _ in lengths_of(listing))
        names = set(names_in(self._layout.partial))
        return to_hex(self._present(listing, names))

    def _present(self, listing: Listing, partial: Set[str]) -> Iterator[bool]:
        for file in listing.contents:
            whole = self._layout.blob(file.sha256).exists()
            arriving = not whole and f"{file.sha256}.map" in partial
            known = self._map(file.sha256) if arriving else b""
            for number, _ in enumerate(file.pieces):
                yield whole or known[number : number + 1] == bytes([VERIFIED])

    def _map(self, sha256: str) -> bytes:
        try:
            return self._layout.chunk_map(sha256).read_bytes()
        except FileNotFoundError:
            return b""


def _is_stamped(stream: BinaryIO, sha256: str) -> bool:
    found = os.fstat(stream.fileno())
    return stat.S_ISREG(found.st_mode) and found.st_mtime == stamp(sha256)
