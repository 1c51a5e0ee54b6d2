"""Read a listing's content: which bytes of which object it is."""

from __future__ import annotations

import threading
from typing import Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.errors import StorageError
from trainctl.store import documents, keys

GAP_BYTES = 2**16
"""Bytes between two pieces that are read along, as another request would take longer."""
_INDEXES_AT_ONCE = 8


class ChunkLocation(NamedTuple):
    """Content of at most one chunk, or a chunk: its digest, and which bytes of which object it is."""

    sha256: str
    key: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.length


class BlobLocator:
    """Where in a store a listing's bytes are. Usable from many threads.

    Large content needs no request. When the first content of at most one chunk is located, the names of the listing's
    packs and their indexes are read, once.
    """

    def __init__(
        self, objects: ObjectStore, listing: Listing, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.objects = objects
        self.listing = listing
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._packs: Optional[Tuple[str, ...]] = None
        self._slices: Dict[bytes, Tuple[int, int, int]] = {}

    def pieces(self, file: ListedFile) -> Iterator[ChunkLocation]:
        """The pieces of a file of the listing, in order."""
        if not file.chunks:
            yield self.whole(file.sha256, file.size)
        for number, sha256 in enumerate(file.chunks):
            length = min(self._chunk_bytes, file.size - number * self._chunk_bytes)
            yield ChunkLocation(sha256, keys.blob(sha256), 0, length)

    def whole(self, sha256: str, size: int) -> ChunkLocation:
        """The piece that is content of at most one chunk: a slice of a pack, or an object of its own."""
        if size:
            packs, slices = self._loaded()
            found = slices.get(bytes.fromhex(sha256))
            if found is not None:
                number, offset, length = found
                return ChunkLocation(sha256, keys.blob(packs[number]), offset, length)
        return ChunkLocation(sha256, keys.blob(sha256), 0, size)

    def readable_keys(self) -> FrozenSet[str]:
        """The objects that a reader of this listing needs: itself, indexes, and content. Serve and sign no others."""
        packs, _ = self._loaded()
        found = {keys.listing(self.listing.id), keys.packs(self.listing.id)}
        found.update(map(keys.pack_index, packs))
        for file in self.listing.files:
            found.update(piece.key for piece in self.pieces(file) if piece.length)
        return frozenset(found)

    def _loaded(self) -> Tuple[Tuple[str, ...], Dict[bytes, Tuple[int, int, int]]]:
        """The listing's packs, and the pack's number, offset and length of each of their contents."""
        with self._lock:
            if self._packs is None:
                packs = documents.load_packs(self.objects, self.listing.id)
                indexes = map_ordered(self._read_index, packs, _INDEXES_AT_ONCE)
                for number, (_, slices) in enumerate(indexes):
                    for digest, offset, length in slices:
                        self._slices[digest] = number, offset, length
                self._packs = packs
            return self._packs, self._slices

    def _read_index(self, pack: str) -> Tuple[documents.PackEntry, ...]:
        slices = documents.load_pack_index(self.objects, pack)
        if slices is None:
            raise missing_error(self.objects, keys.pack_index(pack))
        return slices


def coalesce(
    pieces: Iterable[ChunkLocation], limit: int = CHUNK_BYTES
) -> Iterator[List[ChunkLocation]]:
    """Group pieces for one request each: neighbours in the same object, at most ``limit`` bytes together."""
    run: List[ChunkLocation] = []
    for piece in sorted(pieces, key=lambda piece: (piece.key, piece.offset)):
        first, last = (run[0], run[-1]) if run else (piece, piece)
        is_near = piece.key == last.key and piece.offset <= last.end + GAP_BYTES
        if run and not (is_near and piece.end - first.offset <= limit):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def missing_error(objects: ObjectStore, key: str) -> StorageError:
    """The error for an object that a listing needs and that isn't there."""
    return documents.damaged_error(objects, key, "it is missing")
