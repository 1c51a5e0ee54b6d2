"""Mirrors in a test's directory, sources to fill them from, and what must hold of every mirror."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.projects.instant_waits import skip_waits
from tests.support.storage.store_contents import read_file
from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.plugin_api.sources import SourceCredential, WeightSource
from trainctl.store import documents, keys
from trainctl.store.objects import DirectoryObjects
from trainctl.store.reader import BlobLocator
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore
from trainctl.weights.mirrors import SourceUpstream

REFERENCE = Reference("lineage-1", "weights.model", "ann@laptop", "demo")


def immediate_retry(attempts: int = 4) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, wait=lambda cancelled, seconds: skip_waits())


def mirror_at(root: Path, chunk_bytes: int = CHUNK_BYTES, attempts: int = 4) -> MirrorStore:
    """A mirror in a directory, which doesn't wait between attempts."""
    return MirrorStore(DirectoryObjects(root), immediate_retry(attempts), chunk_bytes)


def ingest(
    store: MirrorStore,
    resolved: ResolvedSource,
    source: WeightSource,
    reference: Reference = REFERENCE,
    credential: SourceCredential | None = None,
    **options: Any,
) -> Listing:
    """Copy a source in, as an apply does it."""
    upstream = SourceUpstream(source, resolved, credential)
    return store.ingest(resolved, upstream, reference, **options)


@dataclass
class MemorySource:
    """Files in memory; ``asked`` are the offsets of requests, ``at`` is its server."""

    files: dict[str, bytes]
    announce: bool = True
    piece: int = 7
    asked: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: str | None = None

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        files = [
            SourceFile(path, len(data), self._validator(data)) for path, data in self.files.items()
        ]
        return ResolvedSource(uri, revision or "1", tuple(sorted(files)))

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        return self.at

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        return None

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        return True

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        with self.lock:
            self.asked.append((file.path, offset))
        data = self.files[file.path]
        yield (data[at : at + self.piece] for at in range(offset, len(data), self.piece))

    def _validator(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        return f"sha256:{digest}" if self.announce else f"etag:{len(data)}"


def contents(store: MirrorStore, listing: Listing) -> dict[str, bytes]:
    """Every file of a listing; each is compared with its digest."""
    locator = BlobLocator(store.objects, listing, store.chunk_bytes)
    files = {file.path: read_file(locator, file) for file in listing.files}
    for file in listing.files:
        assert hashlib.sha256(files[file.path]).hexdigest() == file.sha256
    return files


def stored(root: Path) -> dict[str, int]:
    """The size of all content in a directory by digest, alone or in packs."""
    objects = DirectoryObjects(root)
    sizes = {keys.key_stem(stat.key): stat.size for stat in objects.list(keys.BLOBS)}
    for stat in objects.list(keys.PACK_INDEXES):
        sizes.pop(keys.key_stem(stat.key), None)
        for slice_ in documents.load_pack_index(objects, keys.key_stem(stat.key)) or ():
            sizes[slice_.digest.hex()] = slice_.length
    return sizes


def leftovers(root: Path) -> list[str]:
    """What is kept of files that aren't complete."""
    marks = (stat.key for stat in DirectoryObjects(root).list(keys.PARTIAL))
    return [mark for mark in marks if "/pack." not in mark and ".whole." not in mark]


def assert_sound(place: Path | ObjectStore, chunk_bytes: int = CHUNK_BYTES) -> None:
    """What must hold whatever happened: every blob is what its key says, and every listing has its content."""
    objects = DirectoryObjects(place) if isinstance(place, Path) else place
    store = MirrorStore(objects, immediate_retry(), chunk_bytes)
    for stat in objects.list(keys.BLOBS):
        data = objects.get(stat.key)
        assert data is None or hashlib.sha256(data).hexdigest() == keys.key_stem(stat.key)
    for stat in objects.list(keys.LISTINGS):
        listing = store.load_listing(keys.key_stem(stat.key))
        if listing is not None:
            contents(store, listing)
