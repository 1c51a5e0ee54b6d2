"""What is particular to a directory: modes, temporary files, addresses."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.storage.synced_disk import SyncedDisk
from trainctl.base.lease import holder_name
from trainctl.errors import StateError, UsageError
from trainctl_state import directory_objects, open_directory


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


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncedDisk:
    """A disk that loses what wasn't synced in a power cut."""
    return SyncedDisk(tmp_path, monkeypatch)


def test_objects_survive_a_power_cut(tmp_path: Path, disk: SyncedDisk) -> None:
    """Bytes and names are synced, and so is the directory; not of objects that need not be durable."""
    store = directory_objects(tmp_path)
    assert store.put_if_absent("log/created", b"1")
    store.put("log/replaced", b"1")
    store.put("log/replaced", b"2")
    assert disk.lost("log") == []
    store.put("log/cheap", b"1", durable=False)
    assert disk.lost("log") == ["log/cheap"]
