"""Locate the blobs of a listing in a store's objects."""

from __future__ import annotations

import threading
from typing import Dict, FrozenSet, Iterable, Iterator, List, Optional, Tuple

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.errors import StorageError
from trainctl.store import documents, keys

GAP_BYTES = 2**16
"""Longest gap between two locations that is read along, as another request would take longer."""
_INDEXES_AT_ONCE = 8


class ChunkLocation(NamedTuple):
    """Location of a chunk, or of a blob of at most one chunk."""

    sha256: str
    key: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length


class BlobLocator:
    """Locates the blobs of a listing in a store; thread-safe.

    The pack indexes are read once, when the first blob of at most one chunk is located; large blobs need no request.
    """

    def __init__(
        self, objects: ObjectStore, listing: Listing, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.objects = objects
        self.listing = listing
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._packs: Optional[Tuple[str, ...]] = None
        self._entries: Dict[bytes, Tuple[int, int, int]] = {}

    def locate_file(self, file: ListedFile) -> Iterator[ChunkLocation]:
        """Yield the locations of a file's chunks, in order."""
        if not file.chunks:
            yield self.locate_blob(file.sha256, file.size)
        for number, sha256 in enumerate(file.chunks):
            length = min(self._chunk_bytes, file.size - number * self._chunk_bytes)
            yield ChunkLocation(sha256, keys.blob(sha256), 0, length)

    def locate_blob(self, sha256: str, size: int) -> ChunkLocation:
        """Return the location of a blob of at most one chunk."""
        if size:
            packs, entries = self._load_packs()
            entry = entries.get(bytes.fromhex(sha256))
            if entry is not None:
                number, offset, length = entry
                return ChunkLocation(sha256, keys.blob(packs[number]), offset, length)
        return ChunkLocation(sha256, keys.blob(sha256), 0, size)

    def readable_keys(self) -> FrozenSet[str]:
        """Return the objects that a reader of this listing may read."""
        packs, _ = self._load_packs()
        readable = {keys.listing(self.listing.id), keys.packs(self.listing.id)}
        readable.update(map(keys.pack_index, packs))
        for file in self.listing.files:
            readable.update(chunk.key for chunk in self.locate_file(file) if chunk.length)
        return frozenset(readable)

    def _load_packs(self) -> Tuple[Tuple[str, ...], Dict[bytes, Tuple[int, int, int]]]:
        """Return the listing's packs, and locations in them by digest."""
        with self._lock:
            if self._packs is None:
                packs: List[str] = []
                for pack, entries in load_pack_indexes(self.objects, self.listing.id):
                    for digest, offset, length in entries:
                        self._entries[digest] = len(packs), offset, length
                    packs.append(pack)
                self._packs = tuple(packs)
            return self._packs, self._entries


def load_pack_indexes(
    objects: ObjectStore, listing_id: str
) -> Iterator[Tuple[str, Tuple[documents.PackEntry, ...]]]:
    """Yield the packs of a listing with their entries."""

    def read(pack: str) -> Tuple[documents.PackEntry, ...]:
        entries = documents.load_pack_index(objects, pack)
        if entries is None:
            raise missing_error(objects, keys.pack_index(pack))
        return entries

    return map_ordered(read, documents.load_packs(objects, listing_id), _INDEXES_AT_ONCE)


def coalesce(
    locations: Iterable[ChunkLocation], limit: int = CHUNK_BYTES
) -> Iterator[List[ChunkLocation]]:
    """Group neighbouring locations in an object for one request each."""
    group: List[ChunkLocation] = []
    for location in sorted(locations, key=lambda location: (location.key, location.offset)):
        first, last = (group[0], group[-1]) if group else (location, location)
        is_near = location.key == last.key and location.offset <= last.end + GAP_BYTES
        if group and not (is_near and location.end - first.offset <= limit):
            yield group
            group = []
        group.append(location)
    if group:
        yield group


def missing_error(objects: ObjectStore, key: str) -> StorageError:
    """Return the error for a missing object of a listing."""
    return documents.damaged_error(objects, key, "it is missing")
