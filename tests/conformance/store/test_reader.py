"""Reading a listing's content over every kind of object store."""

from __future__ import annotations

import os

import pytest

from tests.support.storage.store_contents import CHUNK, publish, sha256
from trainctl.base.listing import Listing
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import keys
from trainctl.store.reader import GAP_BYTES, BlobLocator, ChunkLocation, coalesce

LARGE = os.urandom(2 * CHUNK + 7)
FILES = {"a": b"small", "b": b"other", "alone": b"x" * 300, "empty": b"", "large": LARGE}


def located(objects: ObjectStore, listing: Listing) -> dict[str, list[ChunkLocation]]:
    locator = BlobLocator(objects, listing, CHUNK)
    return {file.path: list(locator.locate_file(file)) for file in listing.files}


def test_only_keys_of_the_listing_are_readable(objects: ObjectStore) -> None:
    other = publish(objects, {"alone": b"y" * 300}, text="memory://other")
    listing = publish(objects, FILES)
    readable = BlobLocator(objects, listing, CHUNK).readable_keys()
    pieces = [piece for pieces in located(objects, listing).values() for piece in pieces]
    assert {piece.key for piece in pieces if piece.length} < readable
    assert not readable & {keys.listing(other.id), keys.blob(sha256(b"y" * 300))}
    assert all(objects.stat(key) for key in readable)


def test_a_missing_index_is_named(objects: ObjectStore) -> None:
    listing = publish(objects, FILES)
    index = keys.pack_index(sha256(b"smallother"))
    objects.delete([index])
    with pytest.raises(StorageError, match=index):
        located(objects, listing)


def test_neighbours_are_read_by_one_request(objects: ObjectStore) -> None:
    pieces = located(objects, publish(objects, FILES))
    result = list(coalesce([*pieces["b"], *pieces["a"], *pieces["alone"]]))
    assert sorted(len(run) for run in result) == [1, 2]


def test_runs_are_neither_sparse_nor_long() -> None:
    far = [ChunkLocation("a", "k", 0, 10), ChunkLocation("b", "k", 11 + GAP_BYTES, 10)]
    assert list(coalesce(far)) == [[far[0]], [far[1]]]
    long = [
        ChunkLocation("a", "k", 0, 10),
        ChunkLocation("b", "k", 10, 10),
        ChunkLocation("c", "k", 20, 10),
    ]
    assert list(coalesce(reversed(long), limit=25)) == [long[:2], long[2:]]
