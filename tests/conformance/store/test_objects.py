"""What objects on hosts and in buckets of four servers do; test_object_stores tests the others."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.servers.bucket_stores import SERVERS
from tests.support.storage.store_contents import sha256
from trainctl.base.objects import ObjectStore
from trainctl.buckets.bucket import BucketObjects
from trainctl.store import keys

DATA = bytes(range(256)) * 300
KEY = keys.blob(sha256(DATA))
LEASE = keys.lease_of("source", "pin")


def blobs(count: int) -> list[str]:
    return sorted(keys.blob(sha256(str(number).encode())) for number in range(count))


def names(stats: Iterator[object]) -> list[str]:
    return sorted(stat.key for stat in stats)  # type: ignore[attr-defined]


def test_objects_are_read_as_they_were_put(any_objects: ObjectStore) -> None:
    for data in (b"", b"x", bytearray(DATA), memoryview(DATA)[5:]):
        any_objects.put(KEY, data)
        assert any_objects.get(KEY) == bytes(data)
        into = io.BytesIO()
        assert any_objects.fetch(KEY, into)
        assert into.getvalue() == bytes(data)
    any_objects.sync([KEY])


def test_ranges(any_objects: ObjectStore) -> None:
    any_objects.put(KEY, DATA)
    assert any_objects.get(KEY, 1000) == DATA[1000:]
    assert any_objects.get(KEY, 1000, 17) == DATA[1000:1017]
    assert any_objects.get(KEY, 0, 17) == DATA[:17]
    assert any_objects.get(KEY, len(DATA) - 5, 17) == DATA[-5:]
    assert any_objects.get(KEY, len(DATA), 17) == b""
    assert any_objects.get(KEY, len(DATA) + 1) == b""
    assert any_objects.get(KEY, 5, 0) == b""


def test_there_is_no_such_object(any_objects: ObjectStore) -> None:
    assert any_objects.get(KEY) is None
    assert any_objects.get(KEY, 5, 1) is None
    assert any_objects.get(KEY, 5, 0) is None
    assert any_objects.stat(KEY) is None
    assert not any_objects.fetch(KEY, io.BytesIO())
    assert list(any_objects.list(keys.BLOBS)) == []
    any_objects.delete([KEY, LEASE])


def test_stats_tell_size_and_age(any_objects: ObjectStore) -> None:
    any_objects.put(KEY, b"1")
    any_objects.put(KEY, DATA)
    any_objects.put(LEASE, b"later")
    stat, later = any_objects.stat(KEY), any_objects.stat(LEASE)
    assert stat
    assert later
    assert (stat.key, stat.size) == (KEY, len(DATA))
    assert stat.modified <= later.modified
    (listed,) = any_objects.list(keys.BLOBS)
    assert (listed.key, listed.size) == stat[:2]
    assert listed.modified == pytest.approx(stat.modified, abs=1)


def test_lists_are_of_one_prefix(any_objects: ObjectStore) -> None:
    """Without objects that aren't the store's."""
    expected = blobs(20)
    for key in (*expected, keys.listing(sha256(b"")), f"{keys.BLOBS}/notes.txt"):
        any_objects.put(key, b"x")
    assert names(any_objects.list(keys.BLOBS)) == expected
    assert names(any_objects.list(keys.BLOBS, expected[7])) == expected[8:]
    assert names(any_objects.list(keys.BLOBS, expected[-1])) == []
    assert names(any_objects.list(keys.BLOBS[:-1])) == []


def test_deleted_objects_are_gone(any_objects: ObjectStore) -> None:
    several = blobs(5)
    for key in several:
        any_objects.put(key, b"x")
    any_objects.delete([several[0], KEY, *several[2:]])
    assert names(any_objects.list(keys.BLOBS)) == [several[1]]


def test_only_absent_objects_are_created(any_objects: ObjectStore, request: pytest.FixtureRequest) -> None:  # fmt: skip
    assert any_objects.put_if_absent(LEASE, b"first")
    if "rclone" in request.node.name:
        return  # rclone ignores conditions
    assert not any_objects.put_if_absent(LEASE, b"second")
    assert any_objects.get(LEASE) == b"first"
    any_objects.delete([LEASE])
    assert any_objects.put_if_absent(LEASE, b"third")


@pytest.mark.integration
@pytest.mark.parametrize("kind", SERVERS)
def test_signed_urls_open_just_their_objects(
    make_objects: Callable[[str], BucketObjects], kind: str
) -> None:
    objects = make_objects(kind)
    other = blobs(1)[0]
    for key in (KEY, other):
        objects.put(key, DATA)
    url, _ = objects.presigned([KEY, other], 60)
    with urlopen(url) as answer:
        assert answer.read() == DATA
    if kind != "s3":  # moto checks no signatures
        with pytest.raises(HTTPError):
            urlopen(url.replace(KEY, other))
