"""What a power cut leaves of a state in a directory: all that was written durably, whole and under its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.storage.synced_disk import SyncedDisk
from trainctl_state import directory_objects


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncedDisk:
    """A disk that forgets what wasn't synced."""
    return SyncedDisk(tmp_path, monkeypatch)


def test_a_created_object_survives_a_power_cut(tmp_path: Path, disk: SyncedDisk) -> None:
    """Its bytes and its name are synced, and so is the directory that was made for it."""
    assert directory_objects(tmp_path).put_if_absent("log/x", b"1")
    assert disk.lost("log") == []


def test_a_replaced_object_survives_a_power_cut(tmp_path: Path, disk: SyncedDisk) -> None:
    """The same of an object that is written a second time."""
    store = directory_objects(tmp_path)
    store.put("log/x", b"1")
    store.put("log/x", b"2")
    assert disk.lost("log") == []


def test_an_object_that_need_not_be_durable_costs_no_sync(tmp_path: Path, disk: SyncedDisk) -> None:
    """The disk would lose it, which its writer has accepted."""
    directory_objects(tmp_path).put("log/x", b"1", durable=False)
    assert disk.lost("log") == ["log/x"]
