"""Cache in a directory that all nodes of a cluster see: one node copies a listing from the mirror, others read it.

The directory is a store (``trainctl/store/DESIGN.md``) with the objects of the mirror. Its references are the
lineages that use a listing; the least recently used go when space is needed. Readers verify what they read.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    cast,
)

from trainctl.base.filesystem.space import from_os_error
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import ListedFile, Listing, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.errors import LockHeld, NodeError, TrainctlError
from trainctl.node.system import layout as names
from trainctl.node.transfer.fetch_pool import SHARED, FetchResult, PassOnFn, TransferUnit
from trainctl.node.transfer.object_readers import (
    MirrorFetcher,
    MirrorReader,
    corrupt_error,
)
from trainctl.store import documents, keys
from trainctl.store.gc import delete_garbage, find_garbage
from trainctl.store.lease import hold_exclusive_access, hold_writer_lease
from trainctl.store.objects import DirectoryObjects
from trainctl.store.reader import load_pack_indexes
from trainctl.store.references import (
    Reference,
    StoredReference,
    drop_reference,
    put_reference,
    read_references,
)
from trainctl.store.survey import stored_bytes


class _Blob(NamedTuple):
    """An object to copy, its size, and the files that it has bytes of."""

    key: str
    size: int
    files: List[ListedFile]


class SharedCache:
    """The cache directory of a request, ``{dir, size}``."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.root = names.check_absolute(settings.get("dir"), "shared cache")
        self._limit: Optional[int] = settings.get("size")
        if self._limit is not None and (not isinstance(self._limit, int) or self._limit < 0):
            raise NodeError(f"invalid shared cache size {self._limit!r}: not a number of bytes")
        self._objects = DirectoryObjects(
            self.root, explain=lambda root, error: from_os_error(error, str(root))
        )

    def stored(self, listings: Sequence[str]) -> Set[str]:
        """Return the digests of the files of complete listings."""
        complete = (_load_listing(self._objects, listing_id) for listing_id in listings)
        return {file.sha256 for listing in complete if listing for file in listing.unique_files}

    def copy(
        self, lineage: str, listing: Listing, mirror: MirrorReader, heartbeat: Callable[[], None]
    ) -> Optional[Set[str]]:
        """Copy a listing unless it is complete, or wait for another node that does so.

        Returns the digests of the files that this call has copied; None if the listing doesn't fit.
        """
        objects = self._objects
        resolved = ResolvedSource(f"listing:{listing.id}", "", (), known_as=f"sha256:{listing.id}")
        reference = Reference(lineage, listing.id, "", "")
        named = put_reference(objects, reference, resolved)
        if named and not objects.stat(keys.GC_LEASE) and objects.stat(keys.listing(named)):
            return set()
        source = _MirroredListing(mirror, listing)
        if self._limit is not None and not self._make_space(source.blobs, self._limit):
            drop_reference(objects, lineage, listing.id)
            return None
        copied: Set[str] = set()
        with hold_writer_lease(
            objects, resolved, reference, threading.Event(), lambda _: heartbeat()
        ) as lease:
            if objects.stat(keys.listing(listing.id)) is None:
                copied = source.copy_to(objects, heartbeat)
                lease.require(resolved.source)
                objects.put(keys.listing(listing.id), listing.to_bytes())
            put_reference(objects, reference, resolved, listing.id)
        return copied

    def drop(self, listing: Listing, key: str) -> None:
        """Delete a corrupt object; the next node that needs the listing copies it again."""
        self._objects.delete([keys.listing(listing.id)])
        self._objects.delete([key])

    def forget(self, lineage: str) -> int:
        """Drop a lineage's references and the objects that no other needs; the bytes freed."""
        if not self.root.is_dir():
            return 0
        prefix = keys.reference_prefix(lineage)
        self._objects.delete([stat.key for stat in self._objects.list(prefix)])
        return self._collect(lambda references: references, set())

    def _make_space(self, blobs: Sequence[_Blob], limit: int) -> bool:
        """Evict the least recently used listings until the objects fit; False if they don't."""
        own = {blob.key: blob.size for blob in blobs}
        if sum(own.values()) > limit:
            return False

        def most_recent(references: List[StoredReference]) -> List[StoredReference]:
            kept, sizes = [], dict(own)
            for reference in sorted(references, key=lambda item: item.last_used, reverse=True):
                listing = _load_listing(self._objects, str(reference.listing)) or Listing(())
                for file in listing.unique_files:
                    sizes.update((keys.blob(at.sha256), at.length) for at in file.chunk_ranges)
                if sum(sizes.values()) > limit:
                    break
                kept.append(reference)
            return kept

        for is_last in (False, True):
            stored = {key: self._objects.stat(key) for key in own}
            missing = sum(size for key, size in own.items() if stored[key] is None)
            if stored_bytes(self._objects) + missing <= limit:
                return True
            if not is_last:
                self._collect(most_recent, set(own))
        return False

    def _collect(
        self, choose: Callable[[List[StoredReference]], List[StoredReference]], spared: Set[str]
    ) -> int:
        """Delete what no chosen reference needs, unless another node copies or deletes; the bytes freed."""
        objects = self._objects
        with suppress(LockHeld), hold_exclusive_access(objects) as access:
            if not access.writers:
                stored, damaged = read_references(objects)
                complete = [
                    reference
                    for reference in stored
                    if reference.listing and _load_listing(objects, reference.listing)
                ]
                kept = choose(complete)
                dropped = {item.key for item in stored} - {item.key for item in kept}
                garbage = find_garbage(objects, kept, access.since)
                garbage.content = [key for key in garbage.content if key not in spared]
                delete_garbage(objects, [*dropped, *damaged], garbage, access)
                return garbage.bytes
        return 0


class _MirroredListing:
    """The objects of a listing in the mirror."""

    def __init__(self, mirror: MirrorReader, listing: Listing) -> None:
        self._mirror = mirror
        self._listing = listing
        self._indexes = dict(load_pack_indexes(cast(ObjectStore, mirror), listing.id))
        packs = {entry.digest: pack for pack, rows in self._indexes.items() for entry in rows}
        blobs: Dict[str, _Blob] = {}
        for file in listing.unique_files:
            pack = None if file.chunks else packs.get(file.digest)
            if pack is not None:
                size = max(entry.offset + entry.length for entry in self._indexes[pack])
                blobs.setdefault(pack, _Blob(keys.blob(pack), size, [])).files.append(file)
            else:
                for chunk in file.chunk_ranges if file.size else ():
                    blob = _Blob(keys.blob(chunk.sha256), chunk.length, [file])
                    blobs.setdefault(chunk.sha256, blob)
        self.blobs = [*blobs.values()]

    def copy_to(self, objects: DirectoryObjects, heartbeat: Callable[[], None]) -> Set[str]:
        """Copy what is missing, verified, and the indexes; digests of the files copied."""

        def copy(blob: _Blob) -> bool:
            stat = objects.stat(blob.key)
            if stat is not None and stat.size == blob.size:
                return False
            data = bytearray(blob.size)
            self._mirror.read(blob.key, memoryview(data))
            digest = keys.key_stem(blob.key)
            if hashlib.sha256(data).hexdigest() != digest:
                raise corrupt_error(blob.files[0].path, f"Blob {digest}")
            objects.put(blob.key, data, durable=False)
            return True

        copied: Set[str] = set()
        for blob, is_copied in map_ordered(copy, self.blobs, self._mirror.streams):
            heartbeat()
            if is_copied:
                copied.update(file.sha256 for file in blob.files)
        written: Dict[str, bytes] = {}
        for file in self._listing.unique_files:
            if file.chunks:
                chunks = {"version": 1, "size": file.size, "chunks": list(file.chunks)}
                written[keys.chunk_list(file.sha256)] = documents.encode(chunks)
        for pack, entries in self._indexes.items():
            written[keys.pack_index(pack)] = documents.encode_pack_index(entries)
        packs = {"version": 1, "packs": sorted(self._indexes)}
        written[keys.packs(self._listing.id)] = documents.encode(packs)
        for key, data in written.items():
            objects.put(key, data, durable=False)
        objects.sync([*(blob.key for blob in self.blobs), *written])
        return copied


class SharedCacheFetcher(MirrorFetcher):
    """Fetches from the shared cache; the mirror has what is missing or corrupt."""

    def __init__(self, shared: SharedCache, reader: MirrorReader, listing: Listing) -> None:
        super().__init__(reader, source_name=SHARED)
        self._shared = shared
        self._listing = listing

    def fetch(self, units: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        try:
            yield from list(super().fetch(units, pass_on))
        except OSError:  # of its file system: nothing is known to be corrupt
            yield from [FetchResult(None)] * len(units)
        except TrainctlError:
            self._shared.drop(self._listing, keys.listing(self._listing.id))
            yield from [FetchResult(None)] * len(units)

    def reject(self, unit: TransferUnit) -> None:
        self._shared.drop(self._listing, self._mirror.key_of(unit))


def _load_listing(objects: DirectoryObjects, listing_id: str) -> Optional[Listing]:
    return documents.load_or_none(documents.load_listing, objects, listing_id)
