"""Content put into a store by hand, in the order in which ingest does it."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.base.json import hex_digest
from trainctl.base.listing import ListedFile, Listing, ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import documents, keys, references
from trainctl.store.backends.memory import MemoryObjects
from trainctl.store.documents import PackEntry, encode_pack_index
from trainctl.store.reader import BlobLocator
from trainctl.store.references import Reference

CHUNK = 1024
SMALL = 256
REFERENCE = Reference("lineage-1", "weights.model", "ann@desk", "demo")
OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def source_of(files: Mapping[str, bytes], text: str, revision: str) -> ResolvedSource:
    listed = (
        SourceFile(path, len(data), f"etag:{sha256(data)[:8]}") for path, data in files.items()
    )
    return ResolvedSource(text, revision, tuple(sorted(listed)))


def fingerprint(resolved: ResolvedSource, file: SourceFile) -> str:
    return hex_digest([resolved.identity, file.path, file.size, file.validator])


def read_file(locator: BlobLocator, file: ListedFile) -> bytes:
    """The bytes of a file of a listing."""
    pieces = list(locator.locate_file(file))
    found = [locator.objects.get(one.key, one.offset, one.length) or b"" for one in pieces]
    assert [sha256(data) for data in found] == [piece.sha256 for piece in pieces]
    return b"".join(found)


def publish(
    objects: ObjectStore,
    files: Mapping[str, bytes],
    reference: Reference = REFERENCE,
    *,
    text: str = "memory://model",
    revision: str = "1",
) -> Listing:
    """Copy a source in, whole."""
    resolved = source_of(files, text, revision)
    listing, pack = leave_unfinished(objects, files, reference, text=text, revision=revision)
    if pack:
        objects.put(keys.packs(listing.id), documents.encode({"version": 1, "packs": [pack]}))
    objects.put(keys.listing(listing.id), listing.to_bytes())
    record = {"version": 1, "source": text, "pin": resolved.pin, "listing": listing.id}
    objects.put(keys.record(resolved), documents.encode(record))
    references.put_reference(objects, reference, resolved, listing.id)
    objects.delete([stat.key for stat in objects.list(keys.mark_prefix(resolved))])
    return listing


def leave_unfinished(
    objects: ObjectStore,
    files: Mapping[str, bytes],
    reference: Reference = REFERENCE,
    *,
    text: str = "memory://model",
    revision: str = "1",
) -> tuple[Listing, str]:
    """Copy all content of a source with its marks, and no listing; which pack has the small files."""
    resolved = source_of(files, text, revision)
    references.put_reference(objects, reference, resolved)
    listed = []
    small: dict[str, bytes] = {}
    for file in resolved.files:
        data = files[file.path]
        pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        chunks = tuple(map(sha256, pieces)) if len(data) > CHUNK else ()
        listed.append(ListedFile(file.path, len(data), sha256(data), chunks))
        mark = fingerprint(resolved, file)
        if len(data) < SMALL:
            small[sha256(data)] = data
            continue
        for number, piece in enumerate(pieces):
            objects.put(keys.blob(sha256(piece)), piece)
            objects.put(keys.chunk_mark(resolved, mark, number, sha256(piece)), b"")
        if chunks:
            document = {"version": 1, "size": len(data), "chunks": list(chunks)}
            objects.put(keys.chunk_list(sha256(data)), documents.encode(document))
        objects.put(keys.file_mark(resolved, mark, sha256(data)), b"")
    pack = _put_pack(objects, resolved, small) if small else ""
    return Listing(tuple(listed)), pack


def _put_pack(objects: ObjectStore, resolved: ResolvedSource, small: Mapping[str, bytes]) -> str:
    data = b"".join(small.values())
    rows, offset = [], 0
    for digest, each in small.items():
        rows.append(PackEntry(bytes.fromhex(digest), offset, len(each)))
        offset += len(each)
    objects.put(keys.blob(sha256(data)), data)
    objects.put(keys.pack_index(sha256(data)), encode_pack_index(rows))
    objects.put(keys.pack_mark(resolved, sha256(data)), b"{}")
    return sha256(data)


def stored(objects: ObjectStore) -> dict[str, bytes]:
    """Every object, by key."""
    prefixes = (
        "blobs", "chunked", "slices", "listings", "incomplete", "packs", "records", "partial", "references", "leases",
    )  # fmt: skip
    found = (stat.key for prefix in prefixes for stat in objects.list(prefix))
    return {key: objects.get(key) or b"" for key in found}


class KilledError(StorageError):
    """What a process that was killed can't do."""


def raises_killed(act: Callable[[], object]) -> bool:
    """Whether the objects that something uses died."""
    with contextlib.suppress(KilledError):
        act()
        return False
    return True


def kill_points(objects: ObjectStore) -> range:
    """The calls at which something is killed: each in memory, elsewhere every 16th."""
    step = 1 if isinstance(objects, MemoryObjects) else 16
    return range(step - 1, 1000, step)


class CountingObjects:
    """Objects that count calls, by method."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._objects, name)
        if not callable(act):
            return act

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return act(*arguments, **named)

        return call


class FailingObjects:
    """Objects that fail for good at the call with number ``last``."""

    def __init__(self, objects: ObjectStore, last: int) -> None:
        self._objects = objects
        self._left = last

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._objects, name)
        if not callable(act):
            return act

        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise KilledError("killed")
            return act(*arguments, **named)

        return call
