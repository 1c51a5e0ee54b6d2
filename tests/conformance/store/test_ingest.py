"""Copying a source into every kind of object store."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.support.storage.store_contents import (
    CHUNK,
    OTHER,
    REFERENCE,
    SMALL,
    CountingObjects,
    FailingObjects,
    kill_points,
    raises_killed,
    read_file,
    sha256,
    source_of,
    stored,
)
from tests.support.storage.store_upstream import MemoryUpstream, announced_as
from trainctl.base.listing import Listing, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceInterrupted, SourceMismatch, StorageError, UserInterrupt
from trainctl.store import coverage, file_transfer, keys, lease
from trainctl.store.gc import GcOptions
from trainctl.store.reader import BlobLocator
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

LARGE = os.urandom(5 * CHUNK + 7)
FILES = {"large": LARGE, "alone": b"x" * 300, "small": b"small", "other": b"other", "empty": b""}
SIZE = sum(map(len, FILES.values()))
RETRY = RetryPolicy(attempts=3, wait=lambda *_: None)
KINDS = ("sha256", "git", "md5")


@pytest.fixture(autouse=True)
def _small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "PACKED_BYTES", SMALL)
    monkeypatch.setattr(file_transfer, "_BUFFER_BYTES", CHUNK)
    monkeypatch.setattr(lease, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(lease, "_REPORT_SECONDS", 0.0)


def store_in(objects: ObjectStore) -> MirrorStore:
    return MirrorStore(objects, RETRY, chunk_bytes=CHUNK)


def ingest(
    objects: Any,
    upstream: MemoryUpstream,
    resolved: ResolvedSource | None = None,
    reference: Reference = REFERENCE,
    **options: Any,
) -> Listing:
    resolved = resolved or source_of(upstream.files, "memory://model", "1")
    return store_in(objects).ingest(resolved, upstream, reference, **options)


def contents(objects: ObjectStore, listing: Listing) -> dict[str, bytes]:
    locator = BlobLocator(objects, listing, CHUNK)
    return {file.path: read_file(locator, file) for file in listing.files}


def named(objects: ObjectStore, kind: str) -> list[str]:
    return [key for key in stored(objects) if key.startswith(f"{kind}/")]


def test_a_source_is_copied_whole(objects: ObjectStore) -> None:
    numbers: list[tuple[int, int, int]] = []
    upstream = MemoryUpstream(FILES)
    listing = ingest(objects, upstream, progress=lambda *row: numbers.append(row))
    assert contents(objects, listing) == FILES
    assert store_in(objects).verify().ok
    assert numbers[-1] == (SIZE, SIZE, len(FILES))
    assert upstream.sent == {path: len(data) for path, data in FILES.items() if data}
    assert (named(objects, keys.PARTIAL), named(objects, keys.LEASES)) == ([], [])
    chunks = {file.path: len(file.chunks) for file in listing.files}
    assert chunks == {"large": 6, "alone": 0, "small": 0, "other": 0, "empty": 0}
    assert len(named(objects, keys.PACK_INDEXES)) == 1


def test_a_survey_tells_what_is_there(objects: ObjectStore) -> None:
    resolved = source_of(FILES, "memory://model", "1")
    before = store_in(objects).survey([resolved], ["0" * 64], REFERENCE.lineage)
    assert (before.sources[0].missing, before.sources[0].listing) == (SIZE, None)
    assert (before.listings, before.damaged, before.unusable) == (frozenset(), (), "")
    assert stored(objects) == {}
    listing = ingest(objects, MemoryUpstream(FILES))
    objects.put(OTHER.key, b"nonsense")
    after = store_in(objects).survey([resolved], [listing.id, "0" * 64])
    assert (after.sources[0].missing, after.sources[0].listing) == (0, listing.id)
    assert after.listings == {listing.id}
    assert len(after.damaged) == 1
    assert [*after.sources[0].files] == [(file.sha256, file.size, True) for file in listing.files]
    assert store_in(objects).mirrored(resolved) == listing
    changed = source_of({**FILES, "small": b"new"}, "memory://model", "2")
    assert store_in(objects).survey([changed]).sources[0].missing == len(b"new")


def test_a_repeat_asks_upstream_nothing_and_the_store_little(objects: ObjectStore) -> None:
    listing = ingest(objects, MemoryUpstream(FILES))
    counting = CountingObjects(objects)
    assert ingest(counting, MemoryUpstream({}), source_of(FILES, "memory://model", "1")) == listing
    assert counting.calls.total() <= 5
    upstream = MemoryUpstream({})
    assert ingest(objects, upstream, source_of(FILES, "memory://model", "1"), OTHER) == listing
    assert upstream.opened == []
    assert store_in(objects).gc(GcOptions()).bytes == 0


def test_another_version_fetches_only_what_changed(objects: ObjectStore) -> None:
    ingest(objects, MemoryUpstream(FILES))
    files = {**FILES, "small": b"other content", "new": LARGE[:2000]}
    upstream = MemoryUpstream(files)
    listing = ingest(objects, upstream, source_of(files, "memory://model", "2"))
    assert contents(objects, listing) == files
    assert sorted(upstream.sent) == ["new", "small"]
    store_in(objects).gc(GcOptions())
    assert contents(objects, listing) == files
    assert store_in(objects).verify().ok


def test_announced_content_of_another_source_is_not_fetched(objects: ObjectStore) -> None:
    files = {"large": LARGE, "alone": b"x" * 300}
    ingest(objects, MemoryUpstream(files), announced_as("sha256", files))
    upstream = MemoryUpstream({})
    resolved = announced_as("sha256", files, text="memory://elsewhere")
    assert contents(objects, ingest(objects, upstream, resolved, OTHER)) == files


@pytest.mark.parametrize("path", ["large", "small"])
def test_another_servers_content_is_not_taken_for_ones_own(objects: ObjectStore, path: str) -> None:
    """Two servers may show other content by the same URI, revision and tags."""
    files = {path: FILES[path]}
    elsewhere = {path: bytes(len(FILES[path]))}
    here = source_of(files, "s3://models/llm", "1")
    there = replace(here, endpoint="http://127.0.0.1:9000")
    first = ingest(objects, MemoryUpstream(elsewhere), there, OTHER)
    store = store_in(objects)
    assert store.survey([here]).sources[0].here == 0
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(UserInterrupt):
        ingest(objects, MemoryUpstream(files), here, OTHER, cancelled=cancelled)
    assert store.survey([here]).sources[0].here == 0
    assert store.mirrored(there) == first
    second = ingest(objects, MemoryUpstream(files), here)
    assert contents(objects, second) == files
    assert [store.mirrored(source) for source in (there, here)] == [first, second]
    assert store.mirrored(replace(here, endpoint="http://127.0.0.1:9001")) is None


def test_the_same_content_comes_once(objects: ObjectStore) -> None:
    files = {"a": LARGE, "b": LARGE, "c": b"s", "d": b"s"}
    upstream = MemoryUpstream(files)
    numbers: list[tuple[int, int, int]] = []
    listing = ingest(objects, upstream, announced_as("sha256", files), progress=lambda *row: numbers.append(row))  # fmt: skip
    assert contents(objects, listing) == files
    assert sum(upstream.sent.values()) == len(LARGE) + 1
    assert numbers[-1][2] == 4
    assert numbers[-1][0] == numbers[-1][1]


def test_killed_at_every_step_nothing_wrong_is_published_and_the_next_goes_on(
    objects: ObjectStore,
) -> None:
    resolved = source_of(FILES, "memory://model", "1")
    for last in kill_points(objects):
        first = MemoryUpstream(FILES)
        dying = FailingObjects(objects, last)
        if not raises_killed(lambda dying=dying, first=first: ingest(dying, first)):  # type: ignore[misc]
            break
        store = store_in(objects)
        assert store.verify().ok
        store.gc(GcOptions())
        marked = sum(".whole." not in key and "/pack." not in key for key in named(objects, keys.PARTIAL))  # fmt: skip
        second = MemoryUpstream(FILES)
        listing = ingest(objects, second)
        assert second.sent.get("large", 0) <= (6 - marked) * CHUNK
        assert contents(objects, listing) == FILES
        assert store.verify().ok
        store.drop_reference(REFERENCE.lineage, REFERENCE.address)
        store.gc(GcOptions())
        assert stored(objects) == {}
    assert last > 20
    assert store_in(objects).mirrored(resolved) is not None


class Full(CountingObjects):
    """Objects on a disk with space for so many blobs."""

    def __init__(self, objects: ObjectStore, blobs: int) -> None:
        super().__init__(objects)
        self.left = blobs

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        if key.startswith(keys.BLOBS):
            self.left -= 1
            if self.left < 0:
                raise StorageError("full", code="disk-full")
        self._objects.put(key, data, durable=durable)


@pytest.mark.parametrize("blobs", range(0, 8, 2))
def test_a_disk_that_fills_up_loses_nothing(objects: ObjectStore, blobs: int) -> None:
    with pytest.raises(StorageError) as raised:
        ingest(Full(objects, blobs), MemoryUpstream(FILES))
    assert raised.value.code == "disk-full"
    assert store_in(objects).verify().ok
    marked = sum("." in key.rpartition("/")[2][65:] for key in named(objects, keys.PARTIAL))
    upstream = MemoryUpstream(FILES)
    assert contents(objects, ingest(objects, upstream)) == FILES
    assert sum(upstream.sent.values()) <= SIZE - max(0, marked - 3) * CHUNK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["large", "alone", "small"])
def test_wrong_content_of_the_right_size_is_refused_and_named(
    objects: ObjectStore, kind: str, path: str
) -> None:
    resolved = announced_as(kind, FILES)
    wrong = {**FILES, path: FILES[path][:-1] + b"?"}
    with pytest.raises(SourceMismatch, match=path):
        ingest(objects, MemoryUpstream(wrong), resolved)
    assert named(objects, keys.LISTINGS) == []
    upstream = MemoryUpstream(FILES)
    assert contents(objects, ingest(objects, upstream, resolved)) == FILES
    assert upstream.sent[path] == len(FILES[path])


@pytest.mark.parametrize("parts", [False, True])
def test_a_broken_connection_goes_on_where_it_broke(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    monkeypatch.setattr(file_transfer, "PARALLEL_MIN_BYTES", CHUNK)
    cuts = {"large": {500, 2 * CHUNK, 3 * CHUNK + 100}, "alone": {100}, "small": {2}}
    upstream = MemoryUpstream(FILES, cuts=cuts, parts=parts)
    assert contents(objects, ingest(objects, upstream)) == FILES
    if not parts:
        assert upstream.sent == {path: len(data) for path, data in FILES.items() if data}


def test_what_nothing_identifies_begins_anew(objects: ObjectStore) -> None:
    resolved = announced_as("size", FILES)
    upstream = MemoryUpstream(FILES, cuts={"large": {CHUNK, 3 * CHUNK + 100}, "alone": {100}})
    numbers: list[tuple[int, int, int]] = []
    listing = ingest(objects, upstream, resolved, progress=lambda *row: numbers.append(row))
    assert contents(objects, listing) == FILES
    assert upstream.sent["large"] > len(LARGE) + CHUNK
    assert numbers[-1][0] == SIZE


@pytest.mark.parametrize("path", ["large", "alone", "small"])
def test_a_body_of_another_size_is_refused(objects: ObjectStore, path: str) -> None:
    resolved = source_of(FILES, "memory://model", "1")
    with pytest.raises(SourceInterrupted, match=path):
        ingest(objects, MemoryUpstream({**FILES, path: FILES[path][:-1]}), resolved)
    with pytest.raises(SourceMismatch, match=path):
        ingest(objects, MemoryUpstream({**FILES, path: FILES[path] + b"x"}), resolved)
    assert named(objects, keys.LISTINGS) == []


def test_a_writer_waits_for_a_collection(objects: ObjectStore) -> None:
    waits = threading.Event()
    options = {"waiting": lambda text: waits.set()}
    with lease.hold_exclusive_access(objects):
        writer = threading.Thread(
            target=ingest, args=(objects, MemoryUpstream(FILES)), kwargs=options
        )
        writer.start()
        assert waits.wait(30)
        assert named(objects, keys.BLOBS) == []
    writer.join()
    assert len(named(objects, keys.LISTINGS)) == 1


def test_a_writer_that_was_suspended_publishes_nothing(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(lease, "LATE_RENEWAL_SECONDS", -1.0)
        with pytest.raises(StorageError, match="suspended"):
            ingest(objects, MemoryUpstream(FILES))
    assert (named(objects, keys.LISTINGS), named(objects, keys.RECORDS)) == ([], [])
    upstream = MemoryUpstream({})
    listing = ingest(objects, upstream, source_of(FILES, "memory://model", "1"))
    assert contents(objects, listing) == FILES


@pytest.mark.parametrize("damaged", ["chunk", "alone", "pack", "slices", "listing", "record"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_after_a_repair_only_what_is_missing_is_fetched(
    objects: ObjectStore, damaged: str, is_missing: bool
) -> None:
    """Of files whose digests are announced."""
    resolved = announced_as("sha256", FILES)
    listing = ingest(objects, MemoryUpstream(FILES), resolved)
    (index,) = named(objects, keys.PACK_INDEXES)
    key, sent = {
        "chunk": (keys.blob(sha256(LARGE[2 * CHUNK : 3 * CHUNK])), {"large": len(LARGE)}),
        "alone": (keys.blob(sha256(FILES["alone"])), {"alone": 300}),
        "pack": (keys.blob(keys.key_stem(index)), {"small": 5, "other": 5}),
        "slices": (index, {"small": 5, "other": 5}),
        "listing": (keys.listing(listing.id), None),
        "record": (keys.record(resolved), None),
    }[damaged]
    if is_missing:
        objects.delete([key])
    else:
        objects.put(key, b"wrong")
    store = store_in(objects)
    store.verify(repair=True)
    assert sent is None or store.survey([resolved]).sources[0].missing == sum(sent.values())
    upstream = MemoryUpstream(FILES)
    assert ingest(objects, upstream, resolved) == listing
    assert sent is None or upstream.sent == sent
    assert contents(objects, listing) == FILES
    assert store.verify().ok
    store.gc(GcOptions())
    assert store.verify().ok


def test_a_wide_source_is_packed(objects: ObjectStore) -> None:
    files = {f"{number:05}": b"%d" % number * 3 for number in range(1000)}
    counting = CountingObjects(objects)
    upstream = MemoryUpstream(files)
    listing = ingest(counting, upstream)
    assert len(upstream.opened) == 1000
    size = sum(map(len, files.values()))
    assert counting.calls.total() < 6 * size / CHUNK + 30
    assert contents(objects, listing) == files
    files["00007"] = b"changed"
    upstream = MemoryUpstream(files)
    ingest(objects, upstream, source_of(files, "memory://model", "2"))
    assert upstream.opened == ["00007"]
