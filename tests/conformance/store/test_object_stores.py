"""What directories, of mirrors and of states, and memory do as object stores, seen by two clients of one empty store."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainctl.base.objects import ObjectStore, is_key
from trainctl.errors import StorageError
from trainctl.store.objects import DirectoryObjects, MemoryObjects

Stores = tuple[ObjectStore, ObjectStore]
RACERS = 16
HOSTILE = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "./a", ".a", "a/.b",
    "a b", "a\n", "a\0b", "ä", "a\\b", "a:b", "a*", "~", "$HOME", "a" * 300,
)  # fmt: skip


@pytest.fixture(params=["directory", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "memory":
        store = MemoryObjects()
        return store, store
    root = tmp_path / "new" / "state"
    return DirectoryObjects(root, is_key), DirectoryObjects(root, is_key)


def test_what_is_put_is_read_by_the_other(stores: Stores) -> None:
    client, other_client = stores
    for number, data in enumerate((b"", b"x", bytes(range(256)) * 5000)):
        client.put(f"a/{number}", data)
        assert other_client.get(f"a/{number}") == data


def test_absent_is_none(stores: Stores) -> None:
    client, other_client = stores
    assert other_client.get("a/b") is None
    assert keys(other_client, "a") == []
    client.put("a", b"x")
    assert other_client.get("a/b") is None
    assert keys(other_client, "a") == []


def test_put_replaces(stores: Stores) -> None:
    client, other_client = stores
    client.put("a/b", b"old")
    other_client.put("a/b", b"new", durable=False)
    assert client.get("a/b") == b"new"


def test_a_part_of_an_object(stores: Stores) -> None:
    client, other_client = stores
    client.put("a/b", b"0123456789")
    assert other_client.get("a/b", 3) == b"3456789"
    assert other_client.get("a/b", 3, 4) == b"3456"
    assert other_client.get("a/b", 8, 4) == b"89"


def test_an_object_is_copied_into_a_file(stores: Stores) -> None:
    client, other_client = stores
    client.put("a/b", b"x" * 3_000_000)
    file = io.BytesIO()
    assert other_client.fetch("a/b", file)
    assert file.getvalue() == b"x" * 3_000_000
    assert not other_client.fetch("a/c", file)


def test_size_and_age_are_told(stores: Stores) -> None:
    client, other_client = stores
    client.put("a/1", b"123", durable=False)
    client.sync(["a/1"])
    client.put("a/2", b"")
    first, second = sorted(other_client.list("a"))
    assert (first.key, first.size) == ("a/1", 3)
    assert first.modified <= second.modified
    assert other_client.stat("a/1") == first
    assert other_client.stat("a/3") is None


def test_put_if_absent_never_replaces(stores: Stores) -> None:
    client, other_client = stores
    assert client.put_if_absent("a/b", b"")
    assert not other_client.put_if_absent("a/b", b"x")
    assert not other_client.put_if_absent("a/b", b"")
    assert client.get("a/b") == b""


def test_one_of_many_creators_wins(stores: Stores) -> None:
    for round_ in range(5):
        start = threading.Barrier(RACERS)

        def create(
            racer: int, key: str = f"race/{round_}", start: threading.Barrier = start
        ) -> bool:
            start.wait()
            return stores[racer % 2].put_if_absent(key, str(racer).encode())

        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(create, range(RACERS)))
        assert won.count(True) == 1
        assert stores[0].get(f"race/{round_}") == str(won.index(True)).encode()


def test_replacing_is_never_seen_half_done(stores: Stores) -> None:
    client, other_client = stores
    values = {bytes([value]) * 200_000 for value in range(8)}
    client.put("a/b", bytes([0]) * 200_000)
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for value in sorted(values):
                client.put("a/b", value, durable=False)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(replace)
        observed = {other_client.get("a/b") for _ in range(200)}
        stop.set()
        writing.result()
    assert observed <= values


def test_list_is_bounded(stores: Stores) -> None:
    client, other_client = stores
    for key in ("b/2", "b/10", "a/1", "b/1", "bb/1", "c"):
        client.put(key, b"x")
    assert keys(other_client, "b") == ["b/1", "b/10", "b/2"]
    assert keys(other_client, "b", "b/1") == ["b/10", "b/2"]
    assert keys(other_client, "b", "b/zzz") == []
    assert keys(other_client, "none") == []
    assert keys(other_client, "") == ["a/1", "b/1", "b/10", "b/2", "bb/1", "c"]


def test_delete_is_repeatable(stores: Stores) -> None:
    client, other_client = stores
    client.put("a/b", b"x")
    other_client.delete(["a/b", "a/none"])
    other_client.delete(["a/b"])
    assert client.get("a/b") is None
    assert client.put_if_absent("a/b", b"y")


@pytest.mark.parametrize("key", HOSTILE, ids=repr)
def test_hostile_keys_are_refused(stores: Stores, key: str) -> None:
    store = stores[0]
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.put_if_absent(key, b"x"),
        lambda: store.get(key),
        lambda: store.delete([key]),
    ):
        with pytest.raises(StorageError):
            call()
    assert keys(store, "") == []


def keys(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    """Return the listed keys, sorted."""
    return sorted(stat.key for stat in store.list(prefix, after))
