"""Verify a store: hash blobs, check documents, delete corrupt objects."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, TypeVar

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.errors import StorageError
from trainctl.store import documents, keys, references
from trainctl.store.file_transfer import ProgressFn
from trainctl.store.lease import ExclusiveAccess, Notify, hold_exclusive_access
from trainctl.store.reader import BlobLocator

T = TypeVar("T")
_MAX_CONCURRENT = 3
"""Objects of up to 16 MiB in memory."""
_NEXT_APPLY = "The next apply copies the source again."


class FindingOutcome(str, Enum):
    """Whether a repair removed the object."""

    CORRUPT = "corrupt"
    REMOVED = "removed"

    __str__ = str.__str__


@dataclass(frozen=True)
class Finding:
    """A corrupt or missing object, and the ``sources`` that need it."""

    key: str
    problem: str
    bytes: int = 0
    sources: Tuple[str, ...] = ()
    outcome: FindingOutcome = FindingOutcome.CORRUPT
    detail: str = ""


@dataclass(frozen=True)
class VerifyReport:
    """Hashed ``blobs`` and findings; each file in a pack counts as one."""

    blobs: int
    bytes: int
    findings: Tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all referenced objects are stored and intact."""
        return not self.findings


def verify_store(
    objects: ObjectStore,
    repair: bool = False,
    progress: Optional[ProgressFn] = None,
    notify: Notify = lambda _: None,
) -> VerifyReport:
    """Read all objects; with ``repair`` delete corrupt ones.

    Only the deletion excludes writers; LockHeld if another repair or a collection runs.
    """
    check = _StoreCheck(objects, progress or (lambda done, total, count: None))
    check.run()
    findings = tuple(check.findings())
    if repair and findings:
        with hold_exclusive_access(objects, notify) as access:
            findings = tuple(_StoreRepair(check, access).run(findings))
    return VerifyReport(check.blobs, check.bytes, findings)


class _StoreCheck:
    """``intact`` blobs by digest, ``corrupt`` objects by key.

    ``needed``: sources by the key of an object they need.
    """

    def __init__(self, objects: ObjectStore, progress: ProgressFn) -> None:
        self.objects = objects
        self.intact: Set[bytes] = set()
        self.corrupt: Dict[str, Tuple[str, int]] = {}
        self.listings: Set[str] = set()
        self.needed: Dict[str, Set[str]] = {}
        self.blobs = self.bytes = 0
        self._chunked: Set[str] = set()
        self._progress = progress
        self._references = references.read_references(objects)

    def run(self) -> None:
        """Check all objects, listings first: their blobs exist before they are hashed."""
        self.listings = set(self._names(keys.LISTINGS))
        chunks: Set[bytes] = set()
        for name in self._names(keys.CHUNKED):
            key = keys.chunk_list(name)
            digests = self._readable(key, documents.load_chunks, name, "chunks changed")
            if digests is not None:
                chunks.update(map(bytes.fromhex, digests))
                self._chunked.add(name)
        self.blobs += len(self._chunked)
        packs: Dict[bytes, int] = {}
        for name in self._names(keys.PACK_INDEXES):
            key = keys.pack_index(name)
            entries = self._readable(key, documents.load_pack_index, name, "pack index changed")
            if entries is not None:
                packs[bytes.fromhex(name)] = len(entries)
        self._hash_blobs(chunks, packs)
        for name in sorted(self.listings):
            key = keys.listing(name)
            listing = self._readable(key, documents.load_listing, name, "listing changed")
            stored = (it for it in self._references.stored if name in it.listings)
            sources = {str(reference.record["source"]) for reference in stored}
            for missing, size in self._missing(listing) if listing else ():
                self.corrupt.setdefault(missing, ("missing", size))
                self.needed.setdefault(missing, set()).update(sources)
            if listing is None:
                self.needed.setdefault(key, set()).update(sources)
        for stat in self.objects.list(keys.RECORDS):
            self._readable(stat.key, documents.load, stat.key, "record changed")

    def findings(self) -> Iterator[Finding]:
        """Yield the findings, sorted by key."""
        for key, error in self._references.damaged.items():
            yield Finding(key, "reference changed", detail=error.detail)
        for stored in self._references.stored:
            if stored.listing and stored.listing not in self.listings:
                key = keys.listing(stored.listing)
                if self.objects.stat(key) is None:
                    source = str(stored.record["source"])
                    yield Finding(key, "listing missing", 0, (source,), detail=_NEXT_APPLY)
        for key, (problem, size) in sorted(self.corrupt.items()):
            yield Finding(key, problem, size, tuple(sorted(self.needed.get(key, ()))))

    def _names(self, prefix: str) -> List[str]:
        return [keys.key_stem(stat.key) for stat in self.objects.list(prefix)]

    def _hash_blobs(self, chunks: Set[bytes], packs: Dict[bytes, int]) -> None:
        """Hash all blobs; count files: a pack has several, a chunk is a part of one."""
        total = sum(stat.size for stat in self.objects.list(keys.BLOBS))
        for stat, is_data_intact in map_ordered(
            lambda stat: is_intact(self.objects, stat.key),
            self.objects.list(keys.BLOBS),
            _MAX_CONCURRENT,
        ):
            digest = bytes.fromhex(keys.key_stem(stat.key))
            if is_data_intact:
                self.intact.add(digest)
            elif is_data_intact is not None:
                self.corrupt[stat.key] = "changed", stat.size
            self.bytes += stat.size
            self.blobs += 0 if digest in chunks else packs.get(digest, 1)
            self._progress(self.bytes, total, self.blobs)
        for digest in packs.keys() - self.intact:
            pack, index = keys.blob(digest.hex()), keys.pack_index(digest.hex())
            if (
                pack not in self.corrupt
                and self.objects.stat(index)
                and not self.objects.stat(pack)
            ):
                self.corrupt[index] = "pack missing", 0

    def _missing(self, listing: Listing) -> Iterator[Tuple[str, int]]:
        """Yield key and bytes of missing or corrupt objects that a listing needs."""
        small: Set[bytes] = set()
        lost_packs: List[Tuple[str, int]] = []
        key = keys.packs(listing.id)
        packs = self._readable(key, documents.load_packs, listing.id, "packs changed")
        if packs is None:
            lost_packs.append((key, 0))
        for pack in packs or ():
            if keys.pack_index(pack) in self.corrupt:
                lost_packs.append((keys.pack_index(pack), 0))
            elif bytes.fromhex(pack) not in self.intact:
                lost_packs.append((keys.blob(pack), 0))
            else:
                entries = documents.load_pack_index(self.objects, pack)
                small.update(entry.digest for entry in entries or ())
                lost_packs += [] if entries is not None else [(keys.pack_index(pack), 0)]
        for file in listing.files:
            digests = [bytes.fromhex(sha256) for sha256 in file.chunks or (file.sha256,)]
            lost = [
                digest for digest in digests if digest not in self.intact and digest not in small
            ]
            if lost and not file.chunks and lost_packs:
                yield from lost_packs
            elif lost:
                size = min(file.size, CHUNK_BYTES)
                yield from ((keys.blob(digest.hex()), size) for digest in lost)
            elif file.chunks and file.sha256 not in self._chunked:
                yield keys.chunk_list(file.sha256), file.size

    def _readable(
        self, key: str, load: Callable[[ObjectStore, str], Optional[T]], name: str, problem: str
    ) -> Optional[T]:
        """Return what ``load`` reads; None if the object is corrupt, which is recorded."""
        try:
            return load(self.objects, name)
        except StorageError as error:
            if error.code != documents.DAMAGED:
                raise
            self.corrupt[key] = problem, 0
            return None


class _StoreRepair:
    """Deletes corrupt objects and what names them, those that name others first."""

    def __init__(self, check: _StoreCheck, access: ExclusiveAccess) -> None:
        self._check = check
        self._corrupt = check.corrupt
        self._objects = check.objects
        self._access = access

    def run(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Delete, and yield the findings with their outcome."""
        if self._access.writers:
            for finding in findings:
                yield replace(finding, detail=f"{self._access.description} Try again later.")
            return
        for key in [key for key in self._corrupt if key.startswith(f"{keys.BLOBS}/")]:
            if is_intact(self._objects, key):  # rewritten since the check
                del self._corrupt[key]
        names = (keys.key_stem(stat.key) for stat in self._objects.list(keys.LISTINGS))
        self._delete(keys.listing(name) for name in names if self._is_lost(name))
        self._delete(self._corrupt_below(keys.RECORDS) | self._corrupt_below(keys.PACKS))
        chunked = [stat.key for stat in self._objects.list(keys.CHUNKED)]
        self._delete(key for key in chunked if key in self._corrupt or self._lacks_chunks(key))
        blobs, indexes = self._corrupt_below(keys.BLOBS), self._corrupt_below(keys.PACK_INDEXES)
        self._delete(indexes | {keys.pack_index(keys.key_stem(key)) for key in blobs})
        self._delete(blobs | {keys.blob(keys.key_stem(key)) for key in indexes})
        for finding in findings:
            removed = finding.key in self._corrupt
            yield replace(finding, outcome=FindingOutcome.REMOVED) if removed else finding

    def _corrupt_below(self, prefix: str) -> Set[str]:
        return {key for key in self._corrupt if key.startswith(f"{prefix}/")}

    def _is_lost(self, name: str) -> bool:
        """Return whether a listing is corrupt or names a corrupt object."""
        try:
            listing = documents.load_listing(self._objects, name)
            needed = BlobLocator(self._objects, listing or Listing(())).readable_keys()
        except StorageError as error:
            if error.code != documents.DAMAGED:
                raise
            return True
        chunked = (
            (keys.chunk_list(file.sha256) for file in listing.files if file.chunks)
            if listing
            else ()
        )
        return not needed.union(chunked).isdisjoint(self._corrupt)

    def _lacks_chunks(self, key: str) -> bool:
        """Return whether a chunk of a blob is corrupt or missing."""
        chunks = documents.load_chunks(self._objects, keys.key_stem(key)) or ()
        blobs = {
            keys.blob(chunk) for chunk in chunks if bytes.fromhex(chunk) not in self._check.intact
        }
        return any(blob in self._corrupt or self._objects.stat(blob) is None for blob in blobs)

    def _delete(self, unwanted: Iterable[str]) -> None:
        keys_to_delete = sorted(unwanted)  # may read much: the lease is checked afterwards
        self._access.require()
        self._objects.delete(keys_to_delete)


def is_intact(objects: ObjectStore, key: str) -> Optional[bool]:
    """Return whether a blob matches its key; None if it doesn't exist."""
    data = objects.get(key)
    return None if data is None else hashlib.sha256(data).hexdigest() == keys.key_stem(key)
