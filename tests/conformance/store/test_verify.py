"""Verifying and repairing over every kind of object store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.cases import cases
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
from trainctl.base.lease import Liveness
from trainctl.base.listing import Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.errors import StorageError
from trainctl.store import documents, keys, references
from trainctl.store.gc import GcOptions, gc
from trainctl.store.lease import ObjectLease
from trainctl.store.objects import MemoryObjects
from trainctl.store.store import MirrorStore
from trainctl.store.verify import FindingOutcome, VerifyReport, verify_store

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


def problems_of(report: VerifyReport) -> dict[str, str]:
    return {finding.key: finding.problem for finding in report.findings}


def deleted(objects: ObjectStore, before: dict[str, bytes]) -> set[str]:
    return before.keys() - stored(objects).keys()


def test_what_is_right_is_reported_so(objects: ObjectStore) -> None:
    publish(objects, FILES)
    rows: list[tuple[int, int, int]] = []
    report = verify_store(objects, progress=lambda *row: rows.append(row))
    assert (report.blobs, report.bytes, report.findings) == (5, SIZE, ())
    assert report.ok
    assert rows[-1] == (SIZE, SIZE, 5)


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


def key_by_kind(listing: Listing) -> dict[str, str]:
    """One object of each kind in a store to which FILES were published."""
    return {
        "chunk": keys.blob(sha256(CHUNKS[2])),
        "blob": keys.blob(sha256(FILES["alone"])),
        "chunk list": keys.chunk_list(sha256(LARGE)),
        "pack": keys.blob(PACK),
        "pack index": keys.pack_index(PACK),
        "list of packs": keys.packs(listing.id),
        "listing": keys.listing(listing.id),
        "reference": REFERENCE.key,
        "record": keys.record(source_of(FILES, "memory://model", "1")),
    }


@pytest.mark.parametrize("case", cases("store/damage"))
def test_a_repair_deletes_a_damaged_object_and_what_relies_on_it(
    objects: ObjectStore, case: dict[str, Any]
) -> None:
    """The rest stays, for the next copy; without a repair all of it."""
    for how in DAMAGE:
        if problem := case.get("missing" if how == "missing" else "changed"):
            objects.delete(list(stored(objects)))
            listing = publish(objects, FILES)
            by_kind, before = key_by_kind(listing), stored(objects)
            damage(objects, by_kind[case["kind"]], how)
            damaged = stored(objects)
            assert not verify_store(objects).ok
            assert stored(objects) == damaged
            (finding,) = verify_store(objects, repair=True).findings
            assert finding.problem == problem
            assert finding.sources == tuple(case.get("sources", ["memory://model"]))
            is_kept = finding.outcome is FindingOutcome.CORRUPT
            assert is_kept == case.get("is_kept", False)
            assert deleted(objects, before) == {by_kind[kind] for kind in case["deleted"]}


def unnoticed_flips(step: int) -> list[tuple[str, int]]:
    """Flip one bit of every ``step``-th byte of a store, of all kinds of objects: those that ``verify_store`` doesn't report."""
    objects = MemoryObjects()
    publish(objects, FILES)
    leave_unfinished(objects, {"part": os.urandom(2 * CHUNK)}, OTHER, text="memory://other")
    before = stored(objects)
    unnoticed = []
    for key, data in before.items():
        each = 16 * step if key.startswith(keys.BLOBS) else step
        for at in range(0, 0 if key.startswith(keys.PARTIAL) else len(data), each):
            objects.put(key, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            if key not in problems_of(verify_store(objects)):
                unnoticed.append((key, at))
        objects.put(key, data)
    assert verify_store(objects).ok
    return unnoticed


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.long)])
def test_flipped_bytes_are_found(step: int) -> None:
    assert unnoticed_flips(step) == []


@pytest.mark.parametrize("changes", cases("store/malformed_files"))
def test_a_listing_with_a_malformed_file_is_corrupt(changes: dict[str, object]) -> None:
    """Also if its digest is right."""
    objects = MemoryObjects()
    listing = publish(objects, FILES)
    document = json.loads(listing.to_bytes())
    document["files"][0].update(changes)
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    forged = sha256(data)
    objects.put(keys.listing(forged), data)
    resolved = source_of(FILES, "memory://model", "1")
    references.put_reference(objects, REFERENCE, resolved, forged)
    document = {"version": 1, "source": resolved.source, "pin": resolved.pin, "listing": forged}
    objects.put(keys.record(resolved), documents.encode(document))
    store = MirrorStore(objects, RetryPolicy(), CHUNK)
    assert problems_of(store.verify()) == {keys.listing(forged): "listing changed"}
    assert [row.listing_status for row in store.inventory().rows] == ["corrupt"]
    assert store.mirrored(resolved) is None
    assert store.survey([resolved]).sources[0].listing is None
    with pytest.raises(StorageError, match=forged):
        store.gc(GcOptions())


def test_content_that_nothing_names_goes_if_it_is_damaged(objects: ObjectStore) -> None:
    objects.put(keys.blob(sha256(b"a")), b"b")
    report = verify_store(objects, repair=True)
    assert report.findings[0].sources == ()
    assert stored(objects) == {}
    assert verify_store(objects).ok


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


def test_a_blob_that_was_written_again_meanwhile_stays(objects: ObjectStore) -> None:
    """Before the repair takes its lease."""

    class Rewriting(FailingObjects):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            objects.put(blob, CHUNKS[0])
            return objects.put_if_absent(key, data)

    publish(objects, FILES)
    blob = keys.blob(sha256(CHUNKS[0]))
    damage(objects, blob, "flipped")
    verify_store(Rewriting(objects, 10**9), repair=True)
    assert stored(objects)[blob] == CHUNKS[0]


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
        assert set(problems_of(verify_store(objects)).values()) == {"listing missing"}
        if not was_killed:
            break
    assert last > 20
    references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    gc(objects, GcOptions())
    assert stored(objects) == {}
