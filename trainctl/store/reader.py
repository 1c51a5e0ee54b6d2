"""Read a listing's content: which bytes of which object it is, and reads that verify digests."""

from __future__ import annotations

import hashlib
import struct
import threading
from typing import FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import in_order
from trainctl.errors import StorageError
from trainctl.store import contents, keys, records

GAP_BYTES = 2**16
"""Bytes between two pieces that are read along, as another request would take longer."""
_INDEXES_AT_ONCE = 8
_ROW = struct.Struct(">32sIII")


class Piece(NamedTuple):
    """Content of at most one chunk, or a chunk: its digest, and which bytes of which object it is."""

    sha256: str
    key: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.length


class Locator:
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
        self._rows = b""

    def pieces(self, file: ListedFile) -> Iterator[Piece]:
        """The pieces of a file of the listing, in order."""
        if not file.chunks:
            yield self.whole(file.sha256, file.size)
        for number, sha256 in enumerate(file.chunks):
            length = min(self._chunk_bytes, file.size - number * self._chunk_bytes)
            yield Piece(sha256, keys.blob(sha256), 0, length)

    def whole(self, sha256: str, size: int) -> Piece:
        """The piece that is content of at most one chunk: a slice of a pack, or an object of its own."""
        if size:
            packs = self._loaded()
            row = self._find(bytes.fromhex(sha256))
            if row is not None:
                _, number, offset, length = row
                return Piece(sha256, keys.blob(packs[number]), offset, length)
        return Piece(sha256, keys.blob(sha256), 0, size)

    def readable_keys(self) -> FrozenSet[str]:
        """The objects that a reader of this listing needs: itself, indexes, and content. Serve and sign no others."""
        packs = self._loaded()
        found = {keys.listing(self.listing.id), keys.packs(self.listing.id)}
        found.update(map(keys.slices, packs))
        for file in self.listing.files:
            found.update(piece.key for piece in self.pieces(file) if piece.length)
        return frozenset(found)

    def _loaded(self) -> Tuple[str, ...]:
        with self._lock:
            if self._packs is None:
                packs = contents.packs_of(self.objects, self.listing.id)
                self._rows = b"".join(sorted(self._read_rows(packs)))
                self._packs = packs
            return self._packs

    def _read_rows(self, packs: Tuple[str, ...]) -> Iterator[bytes]:
        def read(number: int) -> Tuple[contents.Slice, ...]:
            slices = contents.slices_of(self.objects, packs[number])
            if slices is None:
                raise missing(self.objects, keys.slices(packs[number]))
            return slices

        for number, slices in in_order(read, range(len(packs)), _INDEXES_AT_ONCE):
            for digest, offset, length in slices:
                yield _ROW.pack(digest, number, offset, length)

    def _find(self, digest: bytes) -> Optional[Tuple[bytes, int, int, int]]:
        """The first row of a digest: number of the pack, offset and length."""
        rows, low, high = self._rows, 0, len(self._rows) // _ROW.size
        while low < high:
            middle = (low + high) // 2
            if rows[middle * _ROW.size : middle * _ROW.size + len(digest)] < digest:
                low = middle + 1
            else:
                high = middle
        at = low * _ROW.size
        is_there = rows[at : at + len(digest)] == digest
        return _ROW.unpack_from(rows, at) if is_there else None


def read(objects: ObjectStore, piece: Piece) -> bytes:
    """The bytes of a piece; StorageError that names the object if they are missing or have another digest."""
    return next(read_run(objects, [piece]))[1]


def read_file(locator: Locator, file: ListedFile) -> Iterator[bytes]:
    """The bytes of a file, piece by piece; StorageError as ``read`` raises it."""
    for piece in locator.pieces(file):
        yield read(locator.objects, piece)


def runs(pieces: Iterable[Piece], limit: int = CHUNK_BYTES) -> Iterator[List[Piece]]:
    """Group pieces for one request each: neighbours in the same object, at most ``limit`` bytes together."""
    run: List[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.key, piece.offset)):
        first, last = (run[0], run[-1]) if run else (piece, piece)
        is_near = piece.key == last.key and piece.offset <= last.end + GAP_BYTES
        if run and not (is_near and piece.end - first.offset <= limit):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def read_run(objects: ObjectStore, run: List[Piece]) -> Iterator[Tuple[Piece, bytes]]:
    """The pieces of a run and their bytes, by one request; StorageError as ``read`` raises it."""
    key, start, end = run[0].key, run[0].offset, max(piece.end for piece in run)
    data = objects.get(key, start, end - start) if end > start else b""
    if data is None:
        raise missing(objects, key)
    for piece in run:
        own = data[piece.offset - start : piece.end - start]
        if hashlib.sha256(own).hexdigest() != piece.sha256:
            raise wrong(objects, piece)
        yield piece, own


def missing(objects: ObjectStore, key: str) -> StorageError:
    """The error for an object that a listing needs and that isn't there."""
    return records.damaged(objects, key, "it is missing")


def wrong(objects: ObjectStore, piece: Piece) -> StorageError:
    """The error for a piece whose bytes have another digest."""
    where = f"bytes {piece.offset} to {piece.end - 1} are" if piece.offset else "it is"
    return records.damaged(objects, piece.key, f"{where} not content {piece.sha256}")
