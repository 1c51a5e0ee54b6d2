"""A mirror in a test's directory, sources to fill it from, and a look at what lies in it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hurrying import time_passes
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile
from trainctl.base.retry import Retry
from trainctl.node.content.pack_index import is_right, rows_of
from trainctl.node.content.packs import Slice
from trainctl.spi.sources import Credential
from trainctl.weights.mirror import DirectoryMirror, Reference, packing
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.partial import set_free

TOGETHER = 8
SECONDS = 30.0
REFERENCE = Reference("lineage-1", "weights.model", "ann@laptop", "demo")


def impatient(attempts: int = 4) -> Retry:
    """Tries again at once."""
    return Retry(attempts=attempts, wait=lambda cancelled, seconds: time_passes())


def mirror_at(root: Path, chunk_bytes: int = CHUNK_BYTES, attempts: int = 4) -> DirectoryMirror:
    """A mirror that does not wait between tries."""
    return DirectoryMirror(root, impatient(attempts), chunk_bytes=chunk_bytes)


@dataclass
class MemorySource:
    """Files in memory. ``cut_after`` bytes a stream ends with the error; ``asked`` are the offsets it was asked for; ``at`` is its server."""

    files: dict[str, bytes]
    announce: bool = True
    piece: int = 7
    cut_after: int | None = None
    error: BaseException | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: str | None = None

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        made = [
            SourceFile(path, len(data), self._validator(data)) for path, data in self.files.items()
        ]
        return ResolvedSource(uri, revision or "1", tuple(sorted(made)))

    def server(self, uri: str, credential: Credential | None) -> str | None:
        return self.at

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        return None

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        return True

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        with self.lock:
            self.asked.append((file.path, offset))
        yield self._pieces(self.files[file.path], offset)

    def _validator(self, data: bytes) -> str:
        return (
            f"sha256:{hashlib.sha256(data).hexdigest()}" if self.announce else f"etag:{len(data)}"
        )

    def _pieces(self, data: bytes, offset: int) -> Iterator[bytes]:
        while offset < len(data):
            if self.cut_after is not None and self.error is not None:
                if self.cut_after <= 0:
                    raise self.error
                self.cut_after -= 1
            yield data[offset : offset + self.piece]
            offset += self.piece


@dataclass
class Crowded(MemorySource):
    """Answers nobody before ``TOGETHER`` files are asked for at the same time; ``most`` of them were."""

    asking: int = 0
    most: int = 0
    enough: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        with self.lock:
            self.asking += 1
            self.most = max(self.most, self.asking)
            if self.asking == TOGETHER:
                self.enough.set()
        assert self.enough.wait(SECONDS), "they come one after another"
        try:
            with super().open(resolved, file, offset, credential) as pieces:
                yield pieces
        finally:
            with self.lock:
                self.asking -= 1


def contents(mirror: DirectoryMirror, listing_id: str) -> dict[str, bytes]:
    """Every file of a listing as the mirror has it; each is held against its name."""
    listing = mirror.load_listing(listing_id)
    assert listing is not None
    known = Contents(mirror._layout)
    found = {file.path: read(mirror, file.sha256, known) for file in listing.files}
    for file in listing.files:
        assert hashlib.sha256(found[file.path]).hexdigest() == file.sha256
    return found


def place_of(mirror: DirectoryMirror, sha256: str) -> Slice:
    """Where a content lies, alone or in a pack."""
    found = Contents(mirror._layout).find(sha256)
    assert found is not None
    return found


def read(mirror: DirectoryMirror, sha256: str, known: Contents | None = None) -> bytes:
    """A content, wherever it lies."""
    place = (known or Contents(mirror._layout)).find(sha256)
    assert place is not None, sha256
    with Path(place.path).open("rb") as stream:
        stream.seek(place.offset)
        return stream.read(place.length)


def stored(root: Path) -> dict[str, int]:
    """The size of every content that lies in a mirror, alone or in packs."""
    loose = {blob.name: blob.stat().st_size for blob in root.glob("blobs/sha256/*/*")}
    rows = (row for index in root.glob("packs/*/index") for row in rows_of(index.read_bytes()))
    return {**loose, **{row.digest.hex(): row.length for row in rows}}


def assert_sound(root: Path) -> None:
    """What must hold whatever happened: every blob and every slice is what its name says, every listing has its contents."""
    for pack in {path.parent for path in root.glob("packs/*/index")}:
        assert sorted(path.name for path in pack.iterdir()) == ["data", "index"]
        assert {path.stat().st_mode & 0o777 for path in pack.iterdir()} == {0o444}
        index, data = (pack / "index").read_bytes(), (pack / "data").read_bytes()
        assert is_right(index)
        for row in rows_of(index):
            assert hashlib.sha256(data[row.offset : row.offset + row.length]).digest() == row.digest
    for blob in root.glob("blobs/sha256/*/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        assert blob.stat().st_mode & 0o777 == 0o444
    layout = mirror_at(root)._layout
    known = Contents(layout)
    for path in root.glob("listings/*.json"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
        listing = layout.load_listing(path.stem)
        assert listing is not None
        assert all(known.has(file.sha256, file.size) for file in listing.files)


def leftovers(root: Path) -> list[str]:
    """Names below ``partial/``."""
    return sorted(path.name for path in root.glob("partial/*"))


def left_behind(
    root: Path, files: Mapping[str, bytes], *, announce: bool
) -> tuple[ResolvedSource, Path, int]:
    """A pack of a source as a killed process leaves it, without what it held in memory; how many files were written."""
    source = MemorySource(dict(files), announce=announce)
    resolved = source.resolve(f"memory://model/{REFERENCE.address}", None, None)
    pack = packing.Packing(mirror_at(root)._layout, packing.pack_key(resolved.source))
    for file in resolved.files:
        data = files[file.path]
        known = None if announce else fingerprint(resolved, file)
        pack.append(hashlib.sha256(data).digest(), data, known)
    set_free(pack._directory)
    os.close(pack._data)
    os.close(pack._journal)
    (left,) = root.glob("partial/*.free.*")
    return resolved, left, (left / "journal").stat().st_size // 72
