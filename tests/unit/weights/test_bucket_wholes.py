"""Larger contents of a mirror in a bucket: that every chunk is what its own name says makes them no content yet, whoever says which chunks these are."""

from __future__ import annotations

import hashlib
import json
import threading
import tracemalloc
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support.bucket_mirrors import Directory, contents, names
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from tests.support.weights_data import noise
from trainctl.base.json import canonical
from trainctl.base.listing import Listing
from trainctl.errors import SourceDenied
from trainctl.weights.bucket import keys, long
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.verify import Finding, Outcome, Verified

CHUNK = 1000
LARGE = noise(2500)
FILES = {"large": LARGE, "other": noise(4200)[200:], "small": b"small"}
SHA256 = hashlib.sha256(LARGE).hexdigest()


class Mirrored:
    """A mirror of the files, and what somebody does to it who may write there."""

    def __init__(self, root: Path, *, announce: bool = True) -> None:
        self.root = root
        self.source = MemorySource(dict(FILES), announce=announce)
        self.resolved = self.source.resolve("hf://a/b", None, None)
        self.listing = self.bring()
        self.source.asked.clear()

    @property
    def mirror(self) -> BucketMirror:
        """As a new process has it."""
        return BucketMirror(Shelf(Directory(self.root), CHUNK), impatient())

    def bring(self) -> Listing:
        """Mirror the source."""
        return self.mirror.mirror(self.resolved, self.source, REFERENCE)

    @property
    def record(self) -> Path:
        """Where it is said which chunks the content is made of."""
        return self.root / keys.chunked(SHA256)

    def wrong_chunks(self) -> list[str]:
        """Others than the content's, each of which is what its name says, and there."""
        objects, data = Directory(self.root), b"-" * CHUNK
        wrong = hashlib.sha256(data).hexdigest()
        objects.put(keys.blob(wrong), data)
        chunks = json.loads(self.record.read_bytes())["chunks"]
        return [chunks[0], wrong, chunks[2]]

    def forge_record(self) -> None:
        """The record names those."""
        chunks = self.wrong_chunks()
        self.record.write_bytes(canonical({"version": 1, "size": len(LARGE), "chunks": chunks}))

    def forge_listing(self) -> str:
        """So does a listing, to which the source's record and its reference lead; the listing's name."""
        chunks = tuple(self.wrong_chunks())
        files = self.listing.files
        forged = Listing(
            tuple(one._replace(chunks=chunks) if one.sha256 == SHA256 else one for one in files)
        )
        objects = Directory(self.root)
        objects.put(keys.listing(forged.id), forged.to_bytes())
        self.root.joinpath(keys.listing(self.listing.id)).unlink()
        key = keys.reference(REFERENCE.lineage, REFERENCE.address)
        said = json.loads(objects.get(key) or b"")
        del said["check"]
        objects.put(key, checked({**said, "listing": forged.id}))
        long.put(objects, keys.record(self.resolved), long.record(self.resolved, forged.id, []))
        return forged.id

    def verify(self, *, repair: bool = False, away: bool = False) -> Verified:
        """Read it all; ``away``: the source can't be asked."""

        def origins(record: object, halt: threading.Event) -> Origin:
            if away:
                raise SourceDenied("403")
            return Origin(self.source, self.resolved, None, impatient())

        return self.mirror.verify(origins if repair else None)


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


def told(verified: Verified) -> list[tuple[str, str, Outcome]]:
    """What was found, in short."""

    def short(one: Finding) -> tuple[str, str, Outcome]:
        return str(one.path), one.what, one.outcome

    return sorted(map(short, verified.findings))


def test_a_forged_record_is_told_and_written_anew(mirrored: Mirrored) -> None:
    """Its chunks are there and right, and make another content than its name says. What the listing says makes the right one."""
    right = mirrored.record.read_bytes()
    mirrored.forge_record()
    key = keys.chunked(SHA256)

    seen = mirrored.verify()
    mended = mirrored.verify(repair=True)

    assert told(seen) == [(key, "chunks changed", Outcome.WRONG)]
    assert told(mended) == [(key, "chunks changed", Outcome.REPAIRED)]
    assert mirrored.record.read_bytes() == right
    assert mirrored.source.asked == []
    assert told(mirrored.verify()) == []


def test_a_forged_listing_beside_a_right_record_goes(mirrored: Mirrored) -> None:
    """The record is left alone: the content is what that says. The next apply writes the listing, and fetches nothing."""
    right = mirrored.record.read_bytes()
    forged = keys.listing(mirrored.forge_listing())

    seen = mirrored.verify()
    mended = mirrored.verify(repair=True)
    listing = mirrored.bring()

    assert told(seen) == [(forged, "listing has wrong chunks", Outcome.WRONG)]
    assert seen.findings[0].sources == ("hf://a/b",)
    assert seen.findings[0].bytes == 0
    assert told(mended) == [(forged, "listing has wrong chunks", Outcome.REMOVED)]
    assert mirrored.record.read_bytes() == right
    assert mirrored.source.asked == []
    assert listing.id == mirrored.listing.id
    assert told(mirrored.verify()) == []


@pytest.mark.parametrize("announce", [True, False])
def test_what_record_and_listing_are_forged_of_comes_again(tmp_path: Path, announce: bool) -> None:
    """Wrong bytes with records that fit them. What upstream announces is fetched at once, the rest with the next apply."""
    mirrored = Mirrored(tmp_path, announce=announce)
    right = mirrored.record.read_bytes()
    mirrored.forge_record()
    forged = keys.listing(mirrored.forge_listing())

    seen = mirrored.verify()
    mended = mirrored.verify(repair=True)
    at_once = {path for path, _ in mirrored.source.asked}
    listing = mirrored.bring()

    assert [(path, what) for path, what, _ in told(seen)] == [
        (keys.chunked(SHA256), "chunks changed"), (forged, "listing has wrong chunks"),
    ]  # fmt: skip
    assert {one.outcome for one in seen.findings} == {Outcome.WRONG}
    assert {one.outcome for one in mended.findings} == {Outcome.REMOVED}
    assert at_once == ({"large"} if announce else set())
    assert "large" in {path for path, _ in mirrored.source.asked}
    assert mirrored.record.read_bytes() == right
    assert listing.id == mirrored.listing.id
    assert told(mirrored.verify()) == []
    assert contents(mirrored.mirror, listing.id) == FILES


def test_nothing_goes_where_the_source_can_not_be_asked(mirrored: Mirrored) -> None:
    """The listing stays, and is told with what was said; the record that nobody can use goes."""
    mirrored.forge_record()
    forged = keys.listing(mirrored.forge_listing())

    mended = mirrored.verify(repair=True, away=True)

    assert (forged, "listing has wrong chunks", Outcome.WRONG) in told(mended)
    assert [one.detail for one in mended.findings if "403" in one.detail] == ["large: 403"]
    assert forged in names(mirrored.mirror, keys.LISTINGS)


def test_chunks_of_other_lengths_are_no_chunks(mirrored: Mirrored) -> None:
    """They make up the very content, and yet nobody who fetches by chunks can use them."""
    objects = Directory(mirrored.root)
    parts = [LARGE[:500], LARGE[500:2000], LARGE[2000:]]
    chunks = [hashlib.sha256(one).hexdigest() for one in parts]
    for sha256, part in zip(chunks, parts, strict=True):
        objects.put(keys.blob(sha256), part)
    mirrored.record.write_bytes(canonical({"version": 1, "size": len(LARGE), "chunks": chunks}))

    assert told(mirrored.verify()) == [(keys.chunked(SHA256), "chunks changed", Outcome.WRONG)]


def test_every_object_is_read_once(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks too, which are hashed by themselves and as parts of their content."""
    mirror, read = mirrored.mirror, list[str]()
    get, fetch = Directory.get, Directory.fetch

    def noted_get(self: Directory, key: str) -> bytes | None:
        read.append(key)
        return get(self, key)

    def noted_fetch(self: Directory, key: str, into: BinaryIO) -> bool:
        read.append(key)
        return fetch(self, key, into)

    monkeypatch.setattr(Directory, "get", noted_get)
    monkeypatch.setattr(Directory, "fetch", noted_fetch)

    verified = mirror.verify(None)

    blobs = names(mirror, keys.BLOBS)
    assert verified.bytes == sum(map(len, FILES.values()))
    assert {read.count(one) for one in blobs} == {1}
    assert read.count(keys.chunked(SHA256)) == 1


def test_a_very_large_content_is_never_in_memory(tmp_path: Path) -> None:
    """Its chunks are read ahead, some of them."""
    chunk, count = 2**20, 64
    mirror = BucketMirror(Shelf(Directory(tmp_path), chunk), impatient())
    source = MemorySource(
        {"large": b"".join(bytes([one]) * chunk for one in range(count))}, piece=chunk
    )
    mirror.mirror(source.resolve("hf://a/b", None, None), source, REFERENCE)
    source.files.clear()
    tracemalloc.start()

    verified = mirror.verify(None)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (verified.findings, verified.bytes) == ((), count * chunk)
    assert peak < 12 * chunk
