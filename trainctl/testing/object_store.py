"""Conformance suite of object stores: provide two clients of one empty store."""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError

RACERS = 16
HOSTILE = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "./a", ".a", "a/.b",
    "a b", "a\n", "a\0b", "ä", "a\\b", "a:b", "a*", "~", "$HOME", "a" * 300,
)  # fmt: skip


class ObjectStoreConformance(ABC):
    """Inherit, define ``stores``, and pytest runs the rest."""

    @pytest.fixture
    @abstractmethod
    def stores(self) -> tuple[ObjectStore, ObjectStore]:
        """Two clients of one empty store that nothing else uses."""

    def test_what_is_put_is_read_by_the_other(
        self, stores: tuple[ObjectStore, ObjectStore]
    ) -> None:
        """Bytes come back as they were, whatever they are, through any client."""
        one, other = stores
        for number, data in enumerate((b"", b"x", bytes(range(256)) * 5000)):
            one.put(f"a/{number}", data)
            assert other.get(f"a/{number}") == data

    def test_absent_is_none(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """Nothing there is None, also below a name that is an object; and listing an empty place gives nothing."""
        one, other = stores
        assert other.get("a/b") is None
        assert keys(other, "a") == []
        one.put("a", b"x")
        assert other.get("a/b") is None
        assert keys(other, "a") == []

    def test_put_replaces(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """The last put wins, durable or not."""
        one, other = stores
        one.put("a/b", b"old")
        other.put("a/b", b"new", durable=False)
        assert one.get("a/b") == b"new"

    def test_a_part_of_an_object(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """From an offset, so many bytes, less at the end; nothing behind it."""
        one, other = stores
        one.put("a/b", b"0123456789")
        assert other.get("a/b", 3) == b"3456789"
        assert other.get("a/b", 3, 4) == b"3456"
        assert other.get("a/b", 8, 4) == b"89"

    def test_an_object_is_copied_into_a_file(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """All of it, and whether there was one is told."""
        one, other = stores
        one.put("a/b", b"x" * 3_000_000)
        file = io.BytesIO()
        assert other.fetch("a/b", file)
        assert file.getvalue() == b"x" * 3_000_000
        assert not other.fetch("a/c", file)

    def test_size_and_age_are_told(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """By stat and by list alike; what was put later is not older."""
        one, other = stores
        one.put("a/1", b"123", durable=False)
        one.sync(["a/1"])
        one.put("a/2", b"")
        first, second = other.list("a")
        assert (first.key, first.size) == ("a/1", 3)
        assert first.modified <= second.modified
        assert other.stat("a/1") == first
        assert other.stat("a/3") is None

    def test_put_if_absent_never_replaces(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """The second creator is told so, and the first one's bytes stay; also if they are empty or equal."""
        one, other = stores
        assert one.put_if_absent("a/b", b"")
        assert not other.put_if_absent("a/b", b"x")
        assert not other.put_if_absent("a/b", b"")
        assert one.get("a/b") == b""

    def test_one_of_many_creators_wins(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """Of sixteen creators at once exactly one is told that it won, and its bytes are there."""
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

    def test_replacing_is_never_seen_half_done(
        self, stores: tuple[ObjectStore, ObjectStore]
    ) -> None:
        """A reader sees the old bytes or the new, never a mixture, a part or nothing."""
        one, other = stores
        values = {bytes([value]) * 200_000 for value in range(8)}
        one.put("a/b", bytes([0]) * 200_000)
        stop = threading.Event()

        def replace() -> None:
            while not stop.is_set():
                for value in sorted(values):
                    one.put("a/b", value, durable=False)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(replace)
            seen = {other.get("a/b") for _ in range(200)}
            stop.set()
            writing.result()
        assert seen <= values

    def test_list_is_sorted_and_bounded(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """Keys come ascending, only those with the prefix, only those after the mark."""
        one, other = stores
        for key in ("b/2", "b/10", "a/1", "b/1", "bb/1", "c"):
            one.put(key, b"x")
        assert keys(other, "b") == ["b/1", "b/10", "b/2"]
        assert keys(other, "b", "b/1") == ["b/10", "b/2"]
        assert keys(other, "b", "b/zzz") == []
        assert keys(other, "none") == []
        assert keys(other, "") == ["a/1", "b/1", "b/10", "b/2", "bb/1", "c"]

    def test_delete_is_repeatable(self, stores: tuple[ObjectStore, ObjectStore]) -> None:
        """Deleted is gone for everyone; deleting what isn't there is no error; the key may be created again."""
        one, other = stores
        one.put("a/b", b"x")
        other.delete(["a/b", "a/none"])
        other.delete(["a/b"])
        assert one.get("a/b") is None
        assert one.put_if_absent("a/b", b"y")

    @pytest.mark.parametrize("key", HOSTILE, ids=repr)
    def test_hostile_keys_are_refused(
        self, stores: tuple[ObjectStore, ObjectStore], key: str
    ) -> None:
        """A name that could leave the store, or that another kind of store can't hold, is an error and writes nothing."""
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
    """Return the listed keys."""
    return [stat.key for stat in store.list(prefix, after)]
