"""Verifying and repairing over every kind of object store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.storage.store_contents import (
    CHUNK,
    OTHER,
    REFERENCE,
    FailingObjects,
    kill_points,
    leave_unfinished,
    publish,
    raises_killed,
    sha256,
    source_of,
    stored,
)
from tests.support.storage.store_upstream import MemoryUpstream
from tests.support.tiers import offset
from trainctl.base.lease import Liveness
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.errors import LockHeld, StorageError
from trainctl.store import documents, keys, references
from trainctl.store.backends.memory import MemoryObjects
from trainctl.store.lease import ObjectLease
from trainctl.store.maintenance.exclusive_access import hold_exclusive_access
from trainctl.store.maintenance.gc import GcOptions, gc
from trainctl.store.maintenance.verify import FindingOutcome, VerifyReport, verify_store
from trainctl.store.store import MirrorStore

LARGE = os.urandom(5 * CHUNK + 7)
FILES = {"large": LARGE, "alone": b"x" * 300, "small": b"small", "other": b"other", "empty": b""}
SIZE = sum(map(len, FILES.values()))
CHUNKS = [LARGE[at : at + CHUNK] for at in range(0, len(LARGE), CHUNK)]
PACK = sha256(b"other" + b"small")


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": flip,
    "truncated": lambda data: data[: len(data) // 3],
    "longer": lambda data: data + b"x",
    "missing": lambda data: None,
}


@pytest.fixture(params=list(DAMAGE))
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def damage(objects: ObjectStore, key: str, how: str) -> None:
    data = objects.get(key)
    assert data is not None
    worse = DAMAGE[how](data)
    if worse is None:
        objects.delete([key])
    else:
        objects.put(key, worse)


def found(report: VerifyReport) -> dict[str, str]:
    return {finding.key: finding.problem for finding in report.findings}


def deleted(objects: ObjectStore, before: dict[str, bytes]) -> set[str]:
    return before.keys() - stored(objects).keys()


def test_what_is_right_is_reported_so(objects: ObjectStore) -> None:
    publish(objects, FILES)
    report = verify_store(objects)
    assert (report.blobs, report.bytes, report.findings) == (5, SIZE, ())
    assert report.ok


def test_an_empty_store_is_right(objects: ObjectStore) -> None:
    assert verify_store(objects, repair=True) == VerifyReport(0, 0)


def test_content_of_unfinished_sources_is_verified(objects: ObjectStore) -> None:
    leave_unfinished(objects, FILES)
    assert verify_store(objects).ok
    damage(objects, keys.blob(sha256(CHUNKS[1])), "flipped")
    assert not verify_store(objects).ok


def test_a_damaged_chunk_of_an_unfinished_file_is_fetched_again(
    objects: ObjectStore, how: str
) -> None:
    """Although its mark says that it is there, and nothing was verified; all others are reused."""
    leave_unfinished(objects, {"large": LARGE})
    objects.delete(
        [key for key in stored(objects) if ".whole." in key or key.startswith("chunked")]
    )
    damage(objects, keys.blob(sha256(CHUNKS[2])), how)
    upstream = MemoryUpstream({"large": LARGE})
    resolved = source_of(upstream.files, "memory://model", "1")
    retry = RetryPolicy(attempts=1, wait=lambda *_: None)
    MirrorStore(objects, retry, chunk_bytes=CHUNK).ingest(resolved, upstream, REFERENCE)
    assert upstream.sent == {"large": CHUNK}
    assert objects.get(keys.blob(sha256(CHUNKS[2]))) == CHUNKS[2]
    assert verify_store(objects).ok


def test_a_damaged_chunk(objects: ObjectStore, how: str) -> None:
    """The chunk goes, and what says that all is there; the rest of the file stays."""
    listing = publish(objects, FILES)
    before = stored(objects)
    key = keys.blob(sha256(CHUNKS[2]))
    damage(objects, key, how)
    told = verify_store(objects)
    assert found(told) == {key: "missing" if how == "missing" else "changed"}
    assert told.findings[0].sources == ("memory://model",)
    assert stored(objects).keys() == before.keys() - ({key} if how == "missing" else set())
    report = verify_store(objects, repair=True)
    assert [finding.outcome for finding in report.findings] == [FindingOutcome.REMOVED]
    assert not report.ok
    assert deleted(objects, before) == {
        key,
        keys.chunk_list(sha256(LARGE)),
        keys.listing(listing.id),
    }
    assert stored(objects)[keys.incomplete(listing.id)] == listing.to_bytes()


def test_a_damaged_blob(objects: ObjectStore, how: str) -> None:
    listing = publish(objects, FILES)
    before = stored(objects)
    key = keys.blob(sha256(FILES["alone"]))
    damage(objects, key, how)
    report = verify_store(objects, repair=True)
    assert found(report) == {key: "missing" if how == "missing" else "changed"}
    assert deleted(objects, before) == {key, keys.listing(listing.id)}


def test_a_damaged_pack(objects: ObjectStore, how: str) -> None:
    listing = publish(objects, FILES)
    before = stored(objects)
    damage(objects, keys.blob(PACK), how)
    report = verify_store(objects, repair=True)
    assert report.findings[0].sources == ("memory://model",)
    assert len(report.findings) == 1
    assert deleted(objects, before) == {
        keys.blob(PACK),
        keys.pack_index(PACK),
        keys.listing(listing.id),
    }


def test_a_damaged_index_of_a_pack(objects: ObjectStore, how: str) -> None:
    listing = publish(objects, FILES)
    before = stored(objects)
    damage(objects, keys.pack_index(PACK), how)
    report = verify_store(objects, repair=True)
    assert len(report.findings) == 1
    gone = deleted(objects, before)
    assert {keys.pack_index(PACK), keys.listing(listing.id)} <= gone
    assert gone <= {keys.pack_index(PACK), keys.listing(listing.id), keys.blob(PACK)}


def test_damaged_names_of_packs(objects: ObjectStore, how: str) -> None:
    listing = publish(objects, FILES)
    before = stored(objects)
    damage(objects, keys.packs(listing.id), how)
    assert not verify_store(objects, repair=True).ok
    assert deleted(objects, before) == {keys.packs(listing.id), keys.listing(listing.id)}


def test_damaged_chunks_of_large_content(objects: ObjectStore, how: str) -> None:
    listing = publish(objects, FILES)
    before = stored(objects)
    key = keys.chunk_list(sha256(LARGE))
    damage(objects, key, how)
    report = verify_store(objects, repair=True)
    assert found(report) == {key: "missing" if how == "missing" else "chunks changed"}
    assert deleted(objects, before) == {key, keys.listing(listing.id)}


def test_a_damaged_listing(objects: ObjectStore, how: str) -> None:
    listing = publish(objects, FILES)
    before = stored(objects)
    key = keys.listing(listing.id)
    damage(objects, key, how)
    report = verify_store(objects, repair=True)
    assert report.findings[0].sources == ("memory://model",)
    if how == "missing":
        assert found(report) == {key: "listing missing"}
        assert report.findings[0].outcome is FindingOutcome.CORRUPT
    else:
        assert found(report) == {key: "listing changed"}
        assert deleted(objects, before) == {key, keys.packs(listing.id)}


@pytest.mark.parametrize("how", ["flipped", "truncated", "longer"])
def test_a_damaged_reference_stays(objects: ObjectStore, how: str) -> None:
    """Only its project knows what it needs."""
    publish(objects, FILES)
    damage(objects, REFERENCE.key, how)
    before = stored(objects)
    report = verify_store(objects, repair=True)
    assert found(report) == {REFERENCE.key: "reference changed"}
    assert report.findings[0].outcome is FindingOutcome.CORRUPT
    assert stored(objects) == before


@pytest.mark.parametrize("how", ["flipped", "truncated", "longer"])
def test_a_damaged_record_goes(objects: ObjectStore, how: str) -> None:
    publish(objects, FILES)
    before = stored(objects)
    key = keys.record(source_of(FILES, "memory://model", "1"))
    damage(objects, key, how)
    assert found(verify_store(objects, repair=True)) == {key: "record changed"}
    assert deleted(objects, before) == {key}
    assert verify_store(objects).ok


def unnoticed_flips(step: int) -> list[tuple[str, int]]:
    """Flip one bit of every ``step``-th byte of a store, of all kinds of objects: those that ``verify_store`` doesn't report."""
    objects = MemoryObjects()
    publish(objects, FILES)
    leave_unfinished(objects, {"part": os.urandom(2 * CHUNK)}, OTHER, text="memory://other")
    before = stored(objects)
    unnoticed = []
    for key, data in before.items():
        each = 16 * step if key.startswith(keys.BLOBS) else step
        for at in range(offset(each), 0 if key.startswith(keys.PARTIAL) else len(data), each):
            objects.put(key, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            if key not in found(verify_store(objects)):
                unnoticed.append((key, at))
        objects.put(key, data)
    assert verify_store(objects).ok
    return unnoticed


def test_some_flipped_bytes_are_found() -> None:
    assert unnoticed_flips(29) == []


@pytest.mark.long
def test_every_flipped_byte_is_found() -> None:
    assert unnoticed_flips(1) == []


NONSENSE: dict[str, dict[str, object]] = {
    "no hex": {"sha256": "zz" * 32},
    "a path": {"sha256": "../../../etc/passwd"},
    "capitals": {"sha256": "AB" * 32},
    "a number": {"sha256": 7},
    "a chunk": {"chunks": ["zz" * 32]},
    "no chunks": {"chunks": None},
    "a size": {"size": "7"},
    "a negative size": {"size": -7},
    "no path": {"path": None},
    "no text": {"path": "\ud800"},
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_in_a_listing_is_damage(nonsense: dict[str, object]) -> None:
    """Also if its name fits: nothing that writes to a store is trusted with the form."""
    objects = MemoryObjects()
    listing = publish(objects, FILES)
    document = json.loads(listing.to_bytes())
    document["files"][0].update(nonsense)
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    forged = sha256(data)
    objects.put(keys.listing(forged), data)
    resolved = source_of(FILES, "memory://model", "1")
    references.put_reference(objects, REFERENCE, resolved, forged)
    document = {"version": 1, "source": resolved.source, "pin": resolved.pin, "listing": forged}
    objects.put(keys.record(resolved), documents.encode(document))
    store = MirrorStore(objects, RetryPolicy(), CHUNK)
    assert found(store.verify()) == {keys.listing(forged): "listing changed"}
    assert [row.listing_status for row in store.inventory().rows] == ["corrupt"]
    assert store.mirrored(resolved) is None
    assert store.survey([resolved]).sources[0].listing is None
    with pytest.raises(StorageError, match=forged):
        store.gc(GcOptions())


def test_listings_that_name_nothing_wrong_stay(objects: ObjectStore) -> None:
    publish(objects, FILES)
    other = publish(objects, {"small": b"another"}, OTHER, text="memory://other")
    damage(objects, keys.blob(sha256(CHUNKS[0])), "flipped")
    report = verify_store(objects, repair=True)
    assert report.findings[0].sources == ("memory://model",)
    assert keys.listing(other.id) in stored(objects)


def test_content_that_nothing_names_goes_if_it_is_damaged(objects: ObjectStore) -> None:
    objects.put(keys.blob(sha256(b"a")), b"b")
    report = verify_store(objects, repair=True)
    assert report.findings[0].sources == ()
    assert stored(objects) == {}
    assert verify_store(objects).ok


def test_after_a_repair_and_copying_again_all_is_right(objects: ObjectStore, how: str) -> None:
    publish(objects, FILES)
    before = stored(objects)
    for key in before:
        if key.partition("/")[0] in ("blobs", "chunked", "slices", "packs"):
            damage(objects, key, how)
    verify_store(objects, repair=True)
    again = verify_store(objects)
    assert set(found(again).values()) == {"listing missing"}
    publish(objects, FILES)
    gc(objects, GcOptions())
    assert verify_store(objects).ok
    assert stored(objects) == before


def test_a_repair_waits_for_no_writer(objects: ObjectStore) -> None:
    publish(objects, FILES)
    damage(objects, keys.blob(sha256(CHUNKS[0])), "flipped")
    before = stored(objects)
    resolved = source_of(FILES, "memory://other", "1")
    with ObjectLease(objects, keys.lease(resolved), {"source": resolved.source}) as lease:
        assert lease.try_acquire(Liveness())
        report = verify_store(objects, repair=True)
    assert [finding.outcome for finding in report.findings] == [FindingOutcome.CORRUPT]
    assert "memory://other" in report.findings[0].detail
    assert stored(objects) == before


def test_no_repair_beside_a_collection(objects: ObjectStore) -> None:
    publish(objects, FILES)
    damage(objects, keys.blob(sha256(CHUNKS[0])), "flipped")
    with hold_exclusive_access(objects):
        assert not verify_store(objects).ok
        with pytest.raises(LockHeld):
            verify_store(objects, repair=True)


class Meanwhile(FailingObjects):
    """Objects with which something happens before the first lease is taken."""

    def __init__(self, objects: ObjectStore, act: Callable[[], object]) -> None:
        super().__init__(objects, 10**9)
        self._act = act

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._act()
        return self._objects.put_if_absent(key, data)


def test_what_was_written_again_meanwhile_stays(objects: ObjectStore) -> None:
    publish(objects, FILES)
    key = keys.blob(sha256(CHUNKS[0]))
    damage(objects, key, "flipped")
    verify_store(Meanwhile(objects, lambda: objects.put(key, CHUNKS[0])), repair=True)
    assert stored(objects)[key] == CHUNKS[0]


def test_listings_that_were_written_meanwhile_and_name_something_wrong_go(
    objects: ObjectStore,
) -> None:
    """A writer took the damaged chunk for right."""
    publish(objects, FILES)
    key = keys.blob(sha256(CHUNKS[0]))
    damage(objects, key, "flipped")
    wrong = objects.get(key) or b""
    ids: list[str] = []

    def write() -> None:
        ids.append(publish(objects, {"again": LARGE}, OTHER, text="memory://other").id)
        objects.put(key, wrong)

    verify_store(Meanwhile(objects, write), repair=True)
    assert keys.listing(ids[0]) not in stored(objects)
    assert keys.incomplete(ids[0]) in stored(objects)


def test_a_repair_killed_at_every_step_leaves_no_listing_without_content(
    objects: ObjectStore,
) -> None:
    damaged = [keys.blob(sha256(CHUNKS[2])), keys.blob(PACK)]
    for last in kill_points(objects):
        listing = publish(objects, FILES)
        for key in damaged:
            damage(objects, key, "flipped")
        was_killed = raises_killed(
            partial(verify_store, FailingObjects(objects, last), repair=True)
        )
        if keys.listing(listing.id) in stored(objects):
            assert all(key in stored(objects) for key in damaged)
        verify_store(objects, repair=True)
        assert set(found(verify_store(objects)).values()) == {"listing missing"}
        if not was_killed:
            break
    assert last > 20
    references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    gc(objects, GcOptions())
    assert stored(objects) == {}


def test_progress_reaches_the_total(objects: ObjectStore) -> None:
    publish(objects, FILES)
    told: list[tuple[int, int, int]] = []
    verify_store(objects, progress=lambda *values: told.append(values))
    assert told[-1] == (SIZE, SIZE, 5)
