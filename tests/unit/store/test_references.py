from __future__ import annotations

from itertools import count

import pytest

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.retry import RetryPolicy
from trainctl.store import references
from trainctl.store.objects import MemoryObjects
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

REFERENCE = Reference("lineage-1", "weights.model", "ann@desk", "demo")
OTHER = Reference("lineage-2", "weights.model", "bob@desk", "other")
FIRST, SECOND = "1" * 64, "2" * 64


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(clock=count(1000.0).__next__)


def source(revision: str, text: str = "hf://acme/model") -> ResolvedSource:
    return ResolvedSource(text, revision, (SourceFile("a", 3, f"etag:{revision}"),))


def only(objects: MemoryObjects) -> references.StoredReference:
    (stored,) = references.read_references(objects).stored
    return stored


def test_a_reference_names_its_source_before_and_its_listing_after(objects: MemoryObjects) -> None:
    references.put_reference(objects, REFERENCE, source("1"))
    assert only(objects).listing is None
    assert only(objects).identity == "hf://acme/model"
    references.put_reference(objects, REFERENCE, source("1"), FIRST)
    assert only(objects).listings == {FIRST}
    assert only(objects).record["bytes"] == 3


def test_a_version_stays_until_the_next_is_complete(objects: MemoryObjects) -> None:
    references.put_reference(objects, REFERENCE, source("1"), FIRST)
    references.put_reference(objects, REFERENCE, source("2"))
    assert only(objects).listing is None
    assert only(objects).listings == {FIRST}
    revisions = [(version["revision"], version["listing"]) for version in only(objects).versions()]
    assert revisions == [("2", None), ("1", FIRST)]
    references.put_reference(objects, REFERENCE, source("3"))
    assert only(objects).listings == {FIRST}
    references.put_reference(objects, REFERENCE, source("3"), SECOND)
    assert only(objects).listings == {SECOND}
    assert [version["listing"] for version in only(objects).versions()] == [SECOND]


def test_copying_the_same_version_again_keeps_its_listing(objects: MemoryObjects) -> None:
    references.put_reference(objects, REFERENCE, source("1"), FIRST)
    references.put_reference(objects, REFERENCE, source("1"))
    assert only(objects).listing == FIRST


def test_renewing_changes_the_time_only(objects: MemoryObjects) -> None:
    references.put_reference(objects, REFERENCE, source("1"), FIRST)
    before = only(objects)
    MirrorStore(objects, RetryPolicy()).renew(REFERENCE.lineage, REFERENCE.address)
    assert only(objects).record == before.record
    assert only(objects).last_used > before.last_used


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"nonsense", b"[" * 100_000])
def test_a_damaged_reference_is_reported_and_written_again(
    objects: MemoryObjects, damage: bytes
) -> None:
    references.put_reference(objects, REFERENCE, source("1"), FIRST)
    references.put_reference(objects, OTHER, source("1"), FIRST)
    objects.put(REFERENCE.key, damage)
    result = references.read_references(objects)
    assert [record.record["owner"] for record in result.stored] == ["bob@desk"]
    assert [error.code for error in result.damaged.values()] == ["mirror-corrupt"]
    references.put_reference(objects, REFERENCE, source("1"), FIRST)
    assert references.read_references(objects).damaged == {}
