"""Garbage collection over every kind of object store."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

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
    source_of,
    stored,
)
from trainctl.base.lease import Liveness
from trainctl.base.objects import ObjectStore
from trainctl.errors import LockHeld, StorageError
from trainctl.store import documents, keys, references
from trainctl.store.gc import GcOptions, GcReport, find_garbage, gc
from trainctl.store.lease import ExclusiveAccess, ObjectLease, hold_exclusive_access
from trainctl.store.verify import verify_store

LARGE = os.urandom(5 * CHUNK + 7)
FILES = {"large": LARGE, "alone": b"x" * 300, "small": b"small", "other": b"other", "empty": b""}
SIZE = sum(map(len, FILES.values()))
FOREIGN = {"holder": "elsewhere-1-2-3", "nonce": "n", "source": "memory://model"}


def collect(objects: ObjectStore, **options: Any) -> GcReport:
    return gc(objects, GcOptions(**options))


def test_what_references_name_stays(objects: ObjectStore) -> None:
    publish(objects, FILES)
    before = stored(objects)
    report = collect(objects)
    assert stored(objects) == before
    assert (report.bytes, report.blobs, report.listings) == (0, 0, ())
    assert [entry.record["project"] for entry in report.kept] == ["demo"]


def test_what_no_reference_names_goes(objects: ObjectStore) -> None:
    """A dry run reports the same, and deletes nothing."""
    listing = publish(objects, FILES)
    references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    before = stored(objects)
    preview = collect(objects, dry_run=True)
    assert stored(objects) == before
    report = collect(objects)
    assert preview == replace(report, dry_run=True)
    assert stored(objects) == {}
    assert [(item.listing, item.files) for item in report.listings] == [(listing.id, len(FILES))]
    assert report.bytes == SIZE
    assert report.blobs == 6 + 1 + 3


def test_the_previous_version_stays_until_the_next_is_complete(objects: ObjectStore) -> None:
    publish(objects, FILES)
    references.put_reference(objects, REFERENCE, source_of({"a": b"new"}, "memory://model", "2"))
    before = stored(objects)
    assert collect(objects).bytes == 0
    assert stored(objects) == before
    publish(objects, {"a": b"new"}, revision="2")
    assert collect(objects).bytes == SIZE


def test_unfinished_content_stays_as_long_as_a_reference_names_its_source(
    objects: ObjectStore,
) -> None:
    leave_unfinished(objects, FILES)
    before = stored(objects)
    collect(objects)
    assert stored(objects) == before
    publish(objects, {"a": b"new"}, OTHER, text="memory://other")
    references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    assert collect(objects).bytes == SIZE
    assert not [key for key in stored(objects) if key.startswith(keys.PARTIAL)]


def test_unused_references_are_dropped(objects: ObjectStore) -> None:
    publish(objects, FILES)
    assert collect(objects, unused_seconds=3600.0).dropped == ()
    report = collect(objects, unused_seconds=-10.0)
    assert [item.record["address"] for item in report.dropped] == ["weights.model"]
    assert report.bytes == SIZE
    assert stored(objects) == {}


def test_objects_newer_than_the_collection_stay(objects: ObjectStore) -> None:
    """Their writer may have begun since, and not have named them yet."""
    publish(objects, FILES)
    ages = [stat.modified for prefix in ("blobs", "listings") for stat in objects.list(prefix)]
    before = find_garbage(objects, (), min(ages) - 1.0)
    after = find_garbage(objects, (), max(ages))
    assert before.names == before.listings == before.indexes == before.content == []
    assert (before.bytes, after.bytes) == (0, SIZE)


def test_nothing_goes_while_a_writer_lives(objects: ObjectStore) -> None:
    publish(objects, FILES, OTHER, text="memory://other")
    references.drop_reference(objects, OTHER.lineage, OTHER.address)
    resolved = source_of(FILES, "memory://model", "1")
    references.put_reference(objects, REFERENCE, resolved)
    before = stored(objects)
    with ObjectLease(objects, keys.lease(resolved), {"source": resolved.source}) as lease:
        assert lease.try_acquire(Liveness())
        for dry_run in (True, False):
            report = collect(objects, dry_run=dry_run, unused_seconds=-10.0)
            assert [item.record["project"] for item in report.busy] == ["demo"]
            assert (report.bytes, report.dropped) == (0, ())
    assert stored(objects) == before
    assert collect(objects).bytes == SIZE


@pytest.mark.parametrize("renews", [False, True])
def test_a_writer_elsewhere_lives_as_long_as_it_renews_its_lease(
    objects: ObjectStore, renews: bool
) -> None:
    """It is dead if it doesn't for 30 seconds."""
    key = keys.lease(source_of(FILES, "memory://model", "1"))
    objects.put(key, documents.encode(FOREIGN))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 5 and renews:
            objects.put(key, documents.encode({**FOREIGN, "renewals": 1}))

    with hold_exclusive_access(objects, liveness=Liveness(lambda: now[0]), sleep=sleep) as held:
        assert list(held.writers) == ([key] if renews else [])
    assert now[0] == 5 if renews else now[0] >= 30
    assert renews or stored(objects) == {}


def test_one_collection_at_a_time(objects: ObjectStore) -> None:
    with hold_exclusive_access(objects), pytest.raises(LockHeld):
        collect(objects)
    collect(objects)


def test_a_collection_that_was_suspended_stops(objects: ObjectStore) -> None:
    publish(objects, FILES)
    references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    now = [0.0]
    lease = ObjectLease(objects, keys.GC_LEASE, {}, clock=lambda: now[0])
    with lease:
        assert lease.try_acquire(Liveness())
        held = ExclusiveAccess(0.0, {}, lease)
        held.require()
        now[0] = 60
        with pytest.raises(StorageError, match="suspended"):
            held.require()
        now[0] = 0
        assert lease.is_late


@pytest.mark.parametrize("damage", [b"{}", b"nonsense"])
def test_nothing_goes_while_a_reference_is_damaged(objects: ObjectStore, damage: bytes) -> None:
    publish(objects, FILES)
    objects.put(OTHER.key, damage)
    before = stored(objects)
    with pytest.raises(StorageError, match="is corrupt"):
        collect(objects)
    assert stored(objects) == before


@pytest.mark.parametrize("damage", [None, b"{}", b"nonsense"])
def test_nothing_goes_while_a_kept_listing_is_lost(
    objects: ObjectStore, damage: bytes | None
) -> None:
    listing = publish(objects, FILES)
    objects.delete([keys.listing(listing.id)])
    if damage is not None:
        objects.put(keys.listing(listing.id), damage)
    before = stored(objects)
    with pytest.raises(StorageError):
        collect(objects)
    assert stored(objects) == before


def test_nothing_goes_between_a_repair_and_the_next_copy(objects: ObjectStore) -> None:
    listing = publish(objects, FILES)
    chunks = next(file.chunks for file in listing.files if file.path == "large")
    damaged = keys.blob(chunks[2])
    objects.put(damaged, b"x")
    verify_store(objects, repair=True)
    before = stored(objects)
    assert damaged not in before
    with pytest.raises(StorageError, match="not found"):
        collect(objects)
    assert stored(objects) == before


def test_a_collection_killed_at_every_step_loses_nothing(objects: ObjectStore) -> None:
    publish(objects, {"large": LARGE, "kept": b"kept"}, OTHER, text="memory://other")
    for last in kill_points(objects):
        publish(objects, FILES)
        references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
        if not raises_killed(partial(gc, FailingObjects(objects, last), GcOptions())):
            break
        assert verify_store(objects).ok
        collect(objects)
        assert verify_store(objects).ok
        references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    assert last > 20
    kinds = {key.partition("/")[0] for key in stored(objects)} - {"leases"}
    assert kinds == {"blobs", "chunked", "listings", "packs", "records", "references", "slices"}
