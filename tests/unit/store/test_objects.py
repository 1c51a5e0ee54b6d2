"""A store in a directory: what a power cut leaves, what others put there, and what this user may not do."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.machines.permissions import GROUP, ONE, OTHER, as_user, place_of_group
from tests.support.storage.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    ingest,
    mirror_at,
)
from tests.support.storage.store_contents import stored
from tests.support.storage.synced_disk import SyncedDisk
from trainctl.base.listing import Listing
from trainctl.errors import SourceInterrupted, StorageError
from trainctl.store import keys
from trainctl.store.gc import GcOptions
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

CHUNK = 1024
LARGE = os.urandom(5 * CHUNK + 5)
FILES = {"large": LARGE, "small": b"small", "other": b"other"}
THEIRS = Reference("lineage-2", "weights.other", "bob@desk", "second")
NEEDS = {
    keys.CHUNKED: ("blobs",),
    keys.PACK_INDEXES: ("blobs",),
    keys.LISTINGS: ("blobs", "chunked", "slices", "packs"),
    keys.RECORDS: ("blobs", "chunked", "slices", "packs", "listings"),
}
"""By kind of object, what must be durable before an object of that kind gets its name."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory, in memory."""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def copy(
    store: MirrorStore,
    files: dict[str, bytes],
    reference: Reference = REFERENCE,
    *,
    announce: bool = True,
) -> Listing:
    source = MemorySource(files, announce, piece=100)
    return ingest(store, source.resolve(f"memory://{reference.address}", None, None), source, reference)  # fmt: skip


@pytest.mark.parametrize("announce", [True, False])
def test_content_is_durable_before_what_names_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, announce: bool
) -> None:
    root = place / "new" / "mirror"
    disk = SyncedDisk(place, monkeypatch)
    wrong: list[str] = []
    named: list[str] = []

    def look(source: Path, target: Path) -> None:
        kind = next((kind for kind in NEEDS if target.is_relative_to(root / kind)), None)
        if kind is not None:
            named.append(kind)
            prefixes = tuple(f"new/mirror/{prefix}/" for prefix in NEEDS[kind])
            wrong.extend(lost for lost in disk.lost("new") if lost.startswith(prefixes))
            wrong.extend([] if disk.is_whole(source) else [f"torn {kind}"])

    disk.before = look
    listing = copy(mirror_at(root, CHUNK), FILES, announce=announce)
    assert wrong == []
    assert set(named) == set(NEEDS)
    kept = ("blobs", "chunked", "slices", "packs", "listings", "records", "references")
    assert [lost for lost in disk.lost("new") if lost.split("/")[2] in kept] == []
    assert contents(mirror_at(root, CHUNK), listing) == FILES


def test_bytes_that_an_interrupted_transfer_left_are_synced_by_the_next(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mirror_at(place, CHUNK, attempts=1)
    source = MemorySource({"large": LARGE})
    resolved = source.resolve("memory://model", None, None)
    disk = SyncedDisk(place, monkeypatch)
    source.files = {"large": LARGE[: 3 * CHUNK]}
    with pytest.raises(SourceInterrupted):
        ingest(store, resolved, source)
    assert disk.lost("blobs") != []
    source.files = {"large": LARGE}
    ingest(store, resolved, source)
    assert source.asked[-1] == ("large", 3 * CHUNK)
    assert disk.lost("blobs", "chunked", "listings") == []


def test_files_of_others_stay_and_harm_nothing(place: Path) -> None:
    store = mirror_at(place / "mirror", CHUNK)
    listing = copy(store, FILES)
    copy(store, {"garbage": os.urandom(3 * CHUNK)}, THEIRS)
    store.drop_reference(THEIRS.lineage, THEIRS.address)
    outside = place / "outside"
    outside.mkdir()
    strays = []
    for directory in [path for path in (place / "mirror").rglob("*") if path.is_dir()]:
        for name in (".nfs000000001234", "README", f"{'0' * 63}"):
            (directory / name).write_text("mine")
        (directory / "link").symlink_to(outside)
        os.mknod(directory / "socket", stat.S_IFSOCK | 0o600)
        strays += [directory / name for name in ("README", "link", "socket")]
    assert store.gc(GcOptions()).bytes == 3 * CHUNK
    assert store.verify(repair=True).ok
    assert contents(store, listing) == FILES
    assert all(os.path.lexists(path) for path in strays if path.parent.exists())
    assert {path.parent for path in strays if not path.parent.exists()} == set()


@pytest.mark.parametrize("kind", [keys.BLOBS, keys.LISTINGS, keys.RECORDS, keys.PACKS])
def test_a_link_in_the_place_of_an_object_is_none(place: Path, kind: str) -> None:
    store = mirror_at(place / "mirror", CHUNK)
    copy(store, FILES)
    secret = place / "secret"
    secret.write_text("years of work")
    for stat_ in list(store.objects.list(kind)):
        (place / "mirror" / stat_.key).unlink()
        (place / "mirror" / stat_.key).symlink_to(secret)
    assert list(store.objects.list(kind)) == []
    store.verify(repair=True)
    copy(store, FILES)
    assert store.verify().ok
    assert secret.read_text() == "years of work"


@needs_root
@pytest.mark.parametrize("announce", [True, False])
def test_two_users_of_a_group_share_a_store(announce: bool) -> None:
    """Content that both have comes once; collecting by either takes what nobody needs."""
    ours, theirs = {**FILES, "own": b"ours"}, {**FILES, "own": b"theirs"}
    with place_of_group() as group:
        store = mirror_at(group / "mirror", CHUNK)
        with as_user(ONE):
            first = copy(store, ours, announce=announce)
        with as_user(OTHER):
            again = mirror_at(store.objects.root, CHUNK)  # type: ignore[attr-defined]
            copy(again, theirs, THEIRS, announce=announce)
            assert again.gc(GcOptions()).bytes == 0
            assert again.drop_reference(THEIRS.lineage, THEIRS.address)
        with as_user(ONE):
            store.gc(GcOptions())
            assert contents(store, first) == ours
            assert_sound(store.objects, CHUNK)
        root = group / "mirror"
        values = [root, *root.rglob("*")]
        assert {path.stat().st_gid for path in values} == {GROUP}
        assert {path.stat().st_mode & 0o7777 for path in values if path.is_dir()} == {0o2770}
        assert len(stored(store.objects)) == 13


@needs_root
@pytest.mark.parametrize(("mode", "name"), [(0o755, "m"), (0o770, "m"), (0o2755, "data/m")])
def test_elsewhere_a_store_is_its_users_alone(mode: int, name: str) -> None:
    """Only what is in a directory that is setgid and writable by its group was meant for it."""
    with place_of_group(mode) as group:
        os.chown(group, ONE, GROUP)
        group.chmod(mode)
        with as_user(ONE):
            copy(mirror_at(group / name), FILES)
        root = group / name
        paths = [path for path in (root, *root.rglob("*")) if path.is_dir()]
        assert {path.stat().st_mode & 0o777 for path in paths} == {0o700}
        with as_user(OTHER), pytest.raises(StorageError, match="permission denied") as refused:
            copy(mirror_at(group / name), FILES, THEIRS)
        assert "mode 2770" in refused.value.detail
