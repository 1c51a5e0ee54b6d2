"""The layout of a log: objects, pruning, refusals; modes and temporary files of directories."""

from __future__ import annotations

import json
import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.storage.log_faults import FaultyStore, StoreFault, StoreFaults
from tests.support.storage.synced_disk import SyncedDisk
from trainctl.base.lease import holder_name
from trainctl.errors import AppendConflict, StateError, UsageError
from trainctl.store.objects import MemoryObjects
from trainctl_state import directory_objects, open_directory
from trainctl_state.log import ObjectLog


def entry(text: object = "") -> dict[str, str]:
    return {"id": str(uuid.uuid4()), "text": str(text)}


def filled(store: MemoryObjects, count: int, every: int = 0) -> ObjectLog:
    """A log with entries 0, 1, …, and a snapshot after every so many."""
    log = ObjectLog(store, "memory:test")
    for number in range(count):
        log.append(number, [entry(number)])
        if every and number % every == every - 1:
            log.snapshot(number + 1, {"at": number + 1})
    return log


def keys(store: MemoryObjects, kind: str) -> list[int]:
    return sorted(int(Path(stat.key).stem) for stat in store.list(kind))


def read_all(log: ObjectLog) -> list[object]:
    return [entry["text"] for entry in log.replay()]


def test_names_and_forms() -> None:
    """Twelve digits, a version in every object, and nothing but the three kinds of objects."""
    store = MemoryObjects()
    filled(store, 6, every=2)
    assert next(iter(store.list(""))).key == "history/000000000000.json"
    assert json.loads(store.get("log/000000000005.json") or b"")["version"] == 1
    assert json.loads(store.get("snapshots/000000000006.json") or b"") == {
        "version": 1,
        "position": 6,
        "fold": {"at": 6},
    }
    assert {stat.key.partition("/")[0] for stat in store.list("")} == {
        "log",
        "snapshots",
        "history",
    }


def test_pruning_empties_what_the_older_snapshot_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two snapshots stay; below the older one every log object is there and empty; history has them, verbatim and in order."""
    in_order = MemoryObjects.list  # some servers of buckets list in another order
    monkeypatch.setattr(MemoryObjects, "list", lambda *place: reversed([*in_order(*place)]))
    store = MemoryObjects()
    log = filled(store, 11, every=3)
    assert keys(store, "snapshots") == [6, 9]
    assert keys(store, "log") == list(range(11))
    assert [store.get(f"log/{n:012d}.json") == b"" for n in range(11)] == [True] * 6 + [False] * 5
    assert read_all(log) == [str(number) for number in range(11)]


def test_a_deleted_empty_object_does_not_let_an_old_writer_in() -> None:
    """Even if somebody tidied the empty objects away: what history or a snapshot covers is refused."""
    store = MemoryObjects()
    filled(store, 11, every=3)
    for number in (0, 5, 7):
        store.delete([f"log/{number:012d}.json"])
        with pytest.raises(AppendConflict):
            ObjectLog(store, "x").append(number, [entry("late")])


class Overtaken(MemoryObjects):
    """Calls back right after an object of the log was created: what others do before the writer looks again."""

    then = staticmethod(lambda: None)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        answer = super().put_if_absent(key, data)
        if key == self.key:
            then, self.then = self.then, staticmethod(lambda: None)
            then()
        return answer

    key = ""


@pytest.mark.parametrize("snapshots", [1, 2, 3])
def test_a_snapshot_made_meanwhile_that_holds_us_is_no_refusal(snapshots: int) -> None:
    """Others read our entry, go on, snapshot and prune before we look again: it counts, once."""
    store = Overtaken()
    log = filled(store, 3)
    store.key = "log/000000000003.json"

    def others() -> None:
        other = ObjectLog(store, "x")
        for number in range(snapshots):
            other.append(4 + number, [entry(4 + number)])
            other.snapshot(5 + number, {"at": 5 + number})

    store.then = staticmethod(others)
    log.append(3, [entry("3")])
    assert read_all(log) == [str(number) for number in range(4 + snapshots)]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}', b'{"fold": {}}', b"[]", b"\xff"])
def test_a_damaged_snapshot_is_passed_over(damage: bytes) -> None:
    """The older one is read, and with both damaged everything is replayed: a snapshot is only a cache."""
    store = MemoryObjects()
    log = filled(store, 11, every=3)
    store.put("snapshots/000000000009.json", damage)
    data = log.read()
    assert (data.snapshot, data.next, len(data.entries)) == ({"at": 6}, 11, 5)
    store.put("snapshots/000000000006.json", damage)
    data = log.read()
    assert (data.snapshot, data.next, len(data.entries)) == (None, 11, 11)
    log.append(11, [entry("11")])
    log.snapshot(12, {"at": 12})
    assert log.read().snapshot == {"at": 12}


@pytest.mark.parametrize(
    "damage",
    [b"{", b"null", b'{"version": 1}', b'{"version": 1, "entries": []}', b'{"version": "1", "entries": [{"id": "x"}]}',
     b'{"version": 1, "entries": [{"text": "no id"}]}', b'{"version": 1, "entries": [3]}', b"[" * 100_000, b"\x00" * 300],
    ids=range(9),
)  # fmt: skip
def test_a_damaged_entry_is_an_error_that_names_it(damage: bytes) -> None:
    """Never an empty or shortened state: reading says which object, where, and what to do."""
    store = MemoryObjects()
    log = filled(store, 3)
    store.put("log/000000000001.json", damage)
    for read in (log.read, lambda: log.read(1), lambda: list(log.replay())):
        with pytest.raises(StateError, match=r"log/000000000001\.json") as caught:
            read()
        assert "backup" in caught.value.detail
        assert "memory:test" in caught.value.detail


def test_a_hole_is_an_error() -> None:
    store = MemoryObjects()
    log = filled(store, 3)
    store.put("log/000000000001.json", b"")
    with pytest.raises(StateError, match=r"log/00000000000[01]\.json"):
        log.read()
    store.delete(["log/000000000001.json"])
    with pytest.raises(StateError, match=r"log/000000000001\.json is missing"):
        log.read()


def test_a_damaged_pack_is_an_error() -> None:
    """History that can't be read says so; the state itself is still read from the snapshot."""
    store = MemoryObjects()
    log = filled(store, 11, every=3)
    first = next(iter(store.list("history"))).key
    store.put(first, b'{"version": 1, "batches": [[]]}')
    assert log.read().next == 11
    with pytest.raises(StateError, match=first):
        list(log.replay())


@pytest.mark.parametrize("key", ["log/000000000010.json", "snapshots/000000000009.json"])
def test_a_future_format_is_refused(key: str) -> None:
    """What a newer trainctl wrote isn't guessed at, not even where an older snapshot could be read."""
    store = MemoryObjects()
    log = filled(store, 11, every=3)
    body = json.loads(store.get(key) or b"")
    store.put(key, json.dumps({**body, "version": 2}).encode())
    with pytest.raises(StateError, match="newer trainctl") as caught:
        log.read()
    assert key in str(caught.value)


@pytest.mark.parametrize("fault", [StoreFault.LOSE, StoreFault.FAIL])
@pytest.mark.parametrize("at", range(1, 30))
def test_a_fault_at_any_write_loses_nothing(at: int, fault: StoreFault) -> None:
    store = MemoryObjects()
    log = ObjectLog(FaultyStore(store, StoreFaults({at: fault})), "x")
    done: list[object] = []
    for number in range(9):
        try:
            log.append(len(done), [entry(number)])
            done.append(str(number))
        except StateError:
            assert fault is StoreFault.FAIL
            continue
        try:
            if number % 2:
                log.snapshot(len(done), {"at": len(done)})
        except StateError:
            pass
    assert read_all(ObjectLog(store, "x")) == done
    assert ObjectLog(store, "x").read().next == len(done)


@pytest.mark.parametrize("killed_after", range(12))
def test_emptying_that_was_interrupted_is_finished_later(killed_after: int) -> None:
    store = MemoryObjects()
    filled(store, 9)
    ObjectLog(store, "x").snapshot(4, {"at": 4})
    faults = StoreFaults({killed_after + 1: StoreFault.FAIL})
    with suppress(StateError):
        ObjectLog(FaultyStore(store, faults), "x").snapshot(8, {"at": 8})
    log = ObjectLog(store, "x")
    log.snapshot(8, {"at": 8})
    log.snapshot(9, {"at": 9})
    emptied = [store.get(f"log/{n:012d}.json") == b"" for n in range(9)]
    assert emptied == [True] * 8 + [False]
    assert read_all(log) == [str(number) for number in range(9)]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """Directories 0700 and files 0600, whatever the umask; parents that had to be made too."""
    before = os.umask(0)
    try:
        directory_objects(tmp_path / "a" / "state").put("log/x", b"1")
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_reading_makes_nothing(tmp_path: Path) -> None:
    log = open_directory((tmp_path / "state").as_uri())
    assert log.read().next == 0
    assert list(tmp_path.iterdir()) == []


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    store = directory_objects(tmp_path)
    store.put("log/x", b"1")
    store.put_if_absent("log/x", b"2")
    with pytest.raises(StateError):
        store.put("log/x/y", b"3")
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    """Named for its process: gone when that is known to be dead; what lives, or is elsewhere, may be writing."""
    directory_objects(tmp_path).put("a", b"1")
    own = holder_name()
    started = int(own.rpartition("-")[2])
    dead = tmp_path / ".tmp" / f"{own.rpartition('-')[0]}-{started + 1}.x"
    living, elsewhere = tmp_path / ".tmp" / f"{own}.x", tmp_path / ".tmp" / "other.boot.1-2.x"
    for path in (dead, living, elsewhere):
        path.write_bytes(b"x")
    directory_objects(tmp_path).put("a", b"2")
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists()


def test_a_lost_link_reply_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that made the link and then says that it exists already: two names say that it was us."""
    real = os.link

    def twice(source: str, target: str) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", twice)
    store = directory_objects(tmp_path)
    assert store.put_if_absent("log/x", b"1")
    assert not store.put_if_absent("log/x", b"2")
    assert store.get("log/x") == b"1"


def test_something_in_the_way_is_named(tmp_path: Path) -> None:
    """A file where the directory should be: every call says so, none says that the state is empty."""
    (tmp_path / "state").write_text("hello")
    store = directory_objects(tmp_path / "state")
    for call in (
        lambda: store.get("log/x"),
        lambda: list(store.list("log")),
        lambda: store.put("a", b""),
    ):
        with pytest.raises(StateError, match=str(tmp_path)):
            call()


@pytest.mark.parametrize(
    "url", ["file:state", "file://host/state", "file:///a/../b", "file://", "file:///a%00b"]
)
def test_an_address_that_is_not_absolute_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a directory for the state") as caught:
        open_directory(url)
    assert "file:///" in caught.value.detail


def test_objects_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SyncedDisk(tmp_path, monkeypatch)
    store = directory_objects(tmp_path)
    assert store.put_if_absent("log/created", b"1")
    store.put("log/replaced", b"1")
    store.put("log/replaced", b"2")
    assert disk.lost("log") == []
    store.put("log/cheap", b"1", durable=False)
    assert disk.lost("log") == ["log/cheap"]
