"""Garbage collection: mark referenced objects, delete the rest, under a lease."""

from __future__ import annotations

import time
from itertools import islice
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lease import Liveness
from trainctl.base.objects import ObjectStat, ObjectStore
from trainctl.errors import StorageError
from trainctl.store import documents, keys, references
from trainctl.store.lease import ExclusiveAccess, Notify, hold_exclusive_access, list_writers
from trainctl.store.references import StoredReference

_DELETED_AT_ONCE = 1000
"""Keys per request, the limit of S3."""


@dataclass(frozen=True)
class GcOptions:
    """``unused_seconds``: also delete references unused for this long."""

    dry_run: bool = False
    unused_seconds: Optional[float] = None


class RemovedListing(NamedTuple):
    """An unreferenced listing."""

    listing: str
    files: int
    bytes: int


@dataclass(frozen=True)
class GcReport:
    """What was deleted, or would be, and the references that keep the rest.

    ``blobs`` and ``bytes`` count deleted blobs, each file in a pack as one. ``busy``: references whose sources are being
    mirrored; then nothing is deleted. ``dropped``: unused references.
    """

    dry_run: bool
    bytes: int = 0
    blobs: int = 0
    listings: Tuple[RemovedListing, ...] = ()
    dropped: Tuple[StoredReference, ...] = ()
    kept: Tuple[StoredReference, ...] = ()
    busy: Tuple[StoredReference, ...] = ()


def gc(objects: ObjectStore, options: GcOptions, notify: Notify = lambda _: None) -> GcReport:
    """Delete unreferenced objects; LockHeld if another collection runs.

    It may be killed at any time; the next collection deletes the rest.
    """
    if options.dry_run:
        access = ExclusiveAccess(time.time(), list_writers(objects, Liveness()))
        return _collect(objects, options, access)
    with hold_exclusive_access(objects, notify) as access:
        return _collect(objects, options, access)


def _collect(objects: ObjectStore, options: GcOptions, access: ExclusiveAccess) -> GcReport:
    all_references = references.read_references(objects)
    for error in all_references.damaged.values():  # the blobs it needs are unknown
        raise error
    stored = all_references.stored
    if access.writers:
        busy = (
            reference
            for reference in stored
            if keys.lease_of(reference.identity, str(reference.record["pin"])) in access.writers
        )
        return GcReport(options.dry_run, kept=stored, busy=tuple(busy))
    unused = options.unused_seconds
    oldest = float("-inf") if unused is None else access.since - unused
    dropped = tuple(reference for reference in stored if reference.last_used < oldest)
    retained = tuple(reference for reference in stored if reference.last_used >= oldest)
    garbage = find_garbage(objects, retained, access.since)
    names = map(keys.key_stem, garbage.listings)
    listings = [documents.load_or_none(documents.load_listing, objects, name) for name in names]
    removed = (RemovedListing(it.id, len(it.files), it.size) for it in listings if it is not None)
    report = GcReport(
        options.dry_run, garbage.bytes, garbage.blobs, tuple(removed), dropped, retained
    )
    if not options.dry_run:
        delete_garbage(objects, [reference.key for reference in dropped], garbage, access)
    return report


def delete_garbage(
    objects: ObjectStore, references: Iterable[str], garbage: GarbageKeys, access: ExclusiveAccess
) -> None:
    """Delete references and objects, those first that name others."""
    for group in (references, garbage.names, garbage.listings, garbage.indexes, garbage.content):
        rest = iter(group)
        while batch := list(islice(rest, _DELETED_AT_ONCE)):
            access.require()
            objects.delete(batch)


@dataclass
class GarbageKeys:
    """Unneeded keys in the order of deletion: objects that name others first."""

    names: List[str] = field(default_factory=list)
    listings: List[str] = field(default_factory=list)
    indexes: List[str] = field(default_factory=list)
    content: List[str] = field(default_factory=list)
    blobs: int = 0
    bytes: int = 0


@dataclass
class _LiveSet:
    """Objects to keep."""

    listings: Set[str] = field(default_factory=set)
    sources: Set[str] = field(default_factory=set)
    blobs: Set[bytes] = field(default_factory=set)
    chunked: Set[bytes] = field(default_factory=set)
    packs: Set[bytes] = field(default_factory=set)


def find_garbage(
    objects: ObjectStore, retained: Sequence[StoredReference], since: float = float("inf")
) -> GarbageKeys:
    """Find unneeded objects not newer than ``since``; StorageError if unsure."""
    live = _mark(objects, retained)
    garbage = GarbageKeys()

    def old(prefix: str) -> Iterator[ObjectStat]:
        return (stat for stat in objects.list(prefix) if stat.modified <= since)

    garbage.names += (stat.key for stat in old(keys.PARTIAL) if stat.key.split("/")[1] not in live.sources)  # fmt: skip
    for stat in old(keys.RECORDS):
        record = documents.load_or_none(documents.load, objects, stat.key) or {}
        if record.get("listing") not in live.listings:
            garbage.names.append(stat.key)
    garbage.listings += _dead_keys(old(keys.LISTINGS), live)
    garbage.indexes += _dead_keys(old(keys.PACKS), live)
    garbage.indexes += (stat.key for stat in old(keys.CHUNKED) if _digest(stat) not in live.chunked)
    rows: Dict[bytes, int] = {}
    for stat in old(keys.PACK_INDEXES):
        if _digest(stat) not in live.packs:
            garbage.indexes.append(stat.key)
            rows[_digest(stat)] = documents.count_pack_entries(stat.size)
    for stat in old(keys.BLOBS):
        digest = _digest(stat)
        if digest not in live.blobs and digest not in live.packs:
            garbage.content.append(stat.key)
            garbage.blobs += rows.get(digest, 1)
            garbage.bytes += stat.size
    return garbage


def _mark(objects: ObjectStore, retained: Sequence[StoredReference]) -> _LiveSet:
    live = _LiveSet()
    for stored in retained:
        for listing_id in stored.listings - live.listings:
            _mark_listing(objects, listing_id, stored, live)
        if stored.listing is None:
            live.sources.add(keys.source_of(stored.identity))
    for source in live.sources:
        for stat in objects.list(f"{keys.PARTIAL}/{source}"):
            name = stat.key.rpartition("/")[2]  # a progress mark: of a chunk, a file or a pack
            sha256 = name.rpartition(".")[2]
            digest = bytes.fromhex(sha256)
            if name.startswith("pack."):
                live.packs.add(digest)
                continue
            live.blobs.add(digest)
            if ".whole." in name:
                live.chunked.add(digest)
                live.blobs.update(map(bytes.fromhex, documents.load_chunks(objects, sha256) or ()))
    return live


def _mark_listing(
    objects: ObjectStore, listing_id: str, stored: StoredReference, live: _LiveSet
) -> None:
    """Mark the objects that a listing names; StorageError if it can't be read."""
    listing = documents.load_listing(objects, listing_id)
    if listing is None:
        raise StorageError(
            f"{objects.url}/{keys.listing(listing_id)} not found: cannot determine which blobs {stored.record['address']} of {stored.record['project']} needs",
            f"Apply again in {stored.record['project']}, or delete {stored.key} if that project no longer exists.",
            code=documents.DAMAGED,
        )
    live.listings.add(listing_id)
    live.packs.update(map(bytes.fromhex, documents.load_packs(objects, listing_id)))
    for file in listing.files:
        if file.chunks:
            live.chunked.add(bytes.fromhex(file.sha256))
        live.blobs.update(map(bytes.fromhex, file.chunks or (file.sha256,)))


def _dead_keys(stats: Iterable[ObjectStat], live: _LiveSet) -> Iterator[str]:
    return (stat.key for stat in stats if keys.key_stem(stat.key) not in live.listings)


def _digest(stat: ObjectStat) -> bytes:
    return bytes.fromhex(keys.key_stem(stat.key))
