"""A store on disks that are full or read-only. A small file system is mounted where the kernel allows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.weights_project import remount, small_disk
from tests.support.servers.hub import Hub, serve
from tests.support.storage.mirrors import assert_sound, contents, ingest, mirror_at
from tests.support.storage.weights_data import noise
from trainctl.base.listing import Listing
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.sources.hf import HubSource
from trainctl.store import keys
from trainctl.store.backends.directory import free_bytes
from trainctl.store.ingestion import ingest as ingest_module
from trainctl.store.maintenance.gc import GcOptions
from trainctl.store.store import MirrorStore

CHUNK = 2**20
BIG = {"model.safetensors": noise(24 * CHUNK), "config.json": b"{}"}
SMALL = {f"{number:03}.bin": noise(100_000, number) for number in range(200)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/big", BIG)
        running.add("acme/small", SMALL)
        yield running


def copy(hub: Hub, store: MirrorStore, name: str) -> Listing:
    source = HubSource(hub.url)
    return ingest(store, source.resolve(f"hf://acme/{name}", None, None), source)


def test_too_little_space_is_an_error_before_anything_moves(hub: Hub, tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "60m") as disk,
        pytest.raises(StorageError, match="free") as raised,
    ):
        copy(hub, mirror_at(disk / "mirror"), "big")
    assert (raised.value.code, str(disk) in str(raised.value)) == ("disk-full", True)
    assert not hub.asked("model.safetensors")


@pytest.mark.parametrize(("name", "files"), [("big", BIG), ("small", SMALL)])
def test_what_arrived_before_the_disk_was_full_is_kept(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]
) -> None:
    with small_disk(tmp_path / "disk", "100m") as disk:
        store = mirror_at(disk / "mirror", CHUNK)
        check = ingest_module._require_space

        def fill(objects: ObjectStore, missing: int) -> None:
            check(objects, missing)
            (disk / "filler").write_bytes(bytes(free_bytes(disk) - 12 * CHUNK))

        with monkeypatch.context() as patched:
            patched.setattr(ingest_module, "_require_space", fill)
            with pytest.raises(StorageError, match="is full") as raised:
                copy(hub, store, name)
        assert raised.value.code == "disk-full"
        assert_sound(store.objects, CHUNK)
        assert not store.verify().findings
        with pytest.raises(StorageError, match="free"):
            copy(hub, store, name)
        (disk / "filler").unlink()
        before = len(hub.seen)
        assert contents(store, copy(hub, store, name)) == files
        again = hub.seen[before:]
        if name == "big":
            asked = [seen.headers.get("Range") for seen in again if seen.path.endswith("tensors")]
            assert None not in asked
            assert len(asked) <= 3
        else:
            assert sum(seen.path.endswith(".bin") for seen in again) < 150


def test_a_collection_frees_space_on_a_full_disk(hub: Hub, tmp_path: Path) -> None:
    """It needs space for its lease; the last blocks of a full disk are freed by dropping the reference."""
    with small_disk(tmp_path / "disk", "100m") as disk:
        store = mirror_at(disk / "mirror", CHUNK)
        copy(hub, store, "big")
        free = free_bytes(disk)
        (disk / "filler").write_bytes(bytes(free))
        store.drop_reference("lineage-1", "weights.model")
        assert store.gc(GcOptions()).bytes == 24 * CHUNK + 2
        assert free_bytes(disk) >= 24 * CHUNK
        assert list(store.objects.list(keys.BLOBS)) == []


def test_a_read_only_disk_is_named(hub: Hub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200m") as disk:
        store = mirror_at(disk / "mirror", CHUNK)
        listing = copy(hub, store, "big")
        remount(disk, "ro")
        with pytest.raises(StorageError, match="read-only") as raised:
            copy(hub, store, "small")
        assert str(disk) in str(raised.value)
        assert "read-only" in store.survey().unusable
        assert contents(store, listing) == BIG
        assert store.verify().ok
