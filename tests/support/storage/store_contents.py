"""Stores with content, whole or unfinished, and objects that count calls or fail."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.storage.store_upstream import MemoryUpstream
from trainctl.base.listing import ListedFile, Listing, ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.errors import StorageError
from trainctl.store import coverage, keys
from trainctl.store.objects import MemoryObjects
from trainctl.store.reader import BlobLocator
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

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


def read_file(locator: BlobLocator, file: ListedFile) -> bytes:
    pieces = list(locator.locate_file(file))
    result = [locator.objects.get(piece.key, piece.offset, piece.length) or b"" for piece in pieces]
    assert [sha256(data) for data in result] == [piece.sha256 for piece in pieces]
    return b"".join(result)


def publish(
    objects: ObjectStore,
    files: Mapping[str, bytes],
    reference: Reference = REFERENCE,
    *,
    text: str = "memory://model",
    revision: str = "1",
) -> Listing:
    """Copy a source in, whole."""
    store = MirrorStore(objects, RetryPolicy(attempts=1), chunk_bytes=CHUNK)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(coverage, "PACKED_BYTES", SMALL)
        upstream = MemoryUpstream(files)
        return store.ingest(source_of(files, text, revision), upstream, reference)


def leave_unfinished(
    objects: ObjectStore,
    files: Mapping[str, bytes],
    reference: Reference = REFERENCE,
    *,
    text: str = "memory://model",
) -> None:
    """Copy all content of a source with its marks, and no listing."""
    assert raises_killed(lambda: publish(Unlisting(objects), files, reference, text=text))


def stored(objects: ObjectStore) -> dict[str, bytes]:
    """Every object, by key."""
    prefixes = (
        "blobs", "chunked", "slices", "listings", "packs", "records", "partial", "references", "leases",
    )  # fmt: skip
    keys = (stat.key for prefix in prefixes for stat in objects.list(prefix))
    return {key: objects.get(key) or b"" for key in keys}


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
            self._before_call(name, *arguments)
            return act(*arguments, **named)

        return call

    def _before_call(self, name: str, *arguments: Any) -> None:
        """For subclasses, which may raise."""


class FailingObjects(CountingObjects):
    """Objects that fail for good after so many calls."""

    def __init__(self, objects: ObjectStore, last: int) -> None:
        super().__init__(objects)
        self._last = last

    def _before_call(self, name: str, *arguments: Any) -> None:
        if self.calls.total() > self._last:
            raise KilledError("killed")


class Unlisting(CountingObjects):
    """Objects among which no listing is put, and no list of packs."""

    def _before_call(self, name: str, *arguments: Any) -> None:
        if name == "put" and arguments[0].startswith((keys.LISTINGS, keys.PACKS)):
            raise KilledError("killed")
