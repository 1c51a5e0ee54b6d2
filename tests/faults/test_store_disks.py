"""A store on disks that are full or read-only. A small file system is mounted where the kernel allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.weights_project import remount, small_disk
from tests.support.storage.mirrors import MemorySource, contents, ingest, mirror_at
from tests.support.storage.weights_data import noise
from trainctl.base.listing import Listing
from trainctl.errors import StorageError
from trainctl.store import keys
from trainctl.store.gc import GcOptions
from trainctl.store.objects import free_bytes
from trainctl.store.store import MirrorStore

CHUNK = 2**20
FILES = {"model.safetensors": noise(24 * CHUNK), "config.json": b"{}"}


def copy(store: MirrorStore, files: dict[str, bytes]) -> Listing:
    source = MemorySource(files, piece=CHUNK)
    return ingest(store, source.resolve("memory://model", None, None), source)


def test_a_collection_frees_space_on_a_full_disk(tmp_path: Path) -> None:
    """Its lease needs space: that of the dropped reference."""
    with small_disk(tmp_path / "disk", "100m") as disk:
        store = mirror_at(disk / "mirror", CHUNK)
        copy(store, FILES)
        (disk / "filler").write_bytes(bytes(free_bytes(disk)))
        store.drop_reference("lineage-1", "weights.model")
        assert store.gc(GcOptions()).bytes == 24 * CHUNK + 2
        assert free_bytes(disk) >= 24 * CHUNK
        assert list(store.objects.list(keys.BLOBS)) == []


def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200m") as disk:
        store = mirror_at(disk / "mirror", CHUNK)
        listing = copy(store, FILES)
        remount(disk, "ro")
        with pytest.raises(StorageError, match="read-only") as raised:
            copy(store, {"other": b"other"})
        assert str(disk) in str(raised.value)
        assert "read-only" in store.survey().unusable
        assert contents(store, listing) == FILES
        assert store.verify().ok
