from __future__ import annotations

import os

from tests.support.storage.store_contents import (
    OTHER,
    REFERENCE,
    leave_unfinished,
    publish,
)
from trainctl.base.objects import ObjectStore
from trainctl.store import references
from trainctl.store.survey import stored_bytes, take_inventory

LARGE = os.urandom(5000)


def test_sources_and_what_they_share(objects: ObjectStore) -> None:
    first = publish(objects, {"large": LARGE, "twice": LARGE, "own": b"x" * 300})
    publish(objects, {"large": LARGE}, OTHER, text="memory://other")
    item, other = take_inventory(objects).rows
    names = (item.source, item.revision, item.listing, item.files)
    assert names == ("memory://model", "1", first.id, 3)
    sizes = (item.bytes, item.bytes_shared, item.bytes_stored, item.bytes_saved)
    assert sizes == (10_300, 5000, 5300, 5000)
    sizes = (other.bytes, other.bytes_shared, other.bytes_stored, other.bytes_saved)
    assert sizes == (5000, 5000, 0, 5000)
    assert stored_bytes(objects) == 5300


def test_one_row_for_all_who_need_the_same(objects: ObjectStore) -> None:
    publish(objects, {"a": LARGE})
    publish(objects, {"a": LARGE}, OTHER)
    (row,) = take_inventory(objects).rows
    assert row.projects == ("demo", "second")
    assert row.users == ("ann@desk", "bob@desk")
    assert row.bytes_shared == 0


def test_what_is_unfinished_and_what_nothing_needs(objects: ObjectStore) -> None:
    publish(objects, {"a": LARGE})
    leave_unfinished(objects, {"b": b"y" * 400}, OTHER, text="memory://other")
    inventory = take_inventory(objects)
    assert [row.listing is None for row in inventory.rows] == [False, True]
    assert (inventory.unfinished, inventory.unreferenced) == (400, 0)
    references.drop_reference(objects, REFERENCE.lineage, REFERENCE.address)
    inventory = take_inventory(objects)
    assert (inventory.unfinished, inventory.unreferenced) == (400, 5000)


def test_a_damaged_reference(objects: ObjectStore) -> None:
    publish(objects, {"a": LARGE})
    objects.put(OTHER.key, b"{}")
    inventory = take_inventory(objects)
    assert len(inventory.rows) == len(inventory.damaged) == 1
    assert OTHER.key in inventory.damaged[0]
