"""Disks that are full, read-only or forbidden. A small file system of one's own is mounted where the kernel allows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub, serve
from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    mirror_at,
    place_of,
)
from tests.support.weights_data import noise
from trainctl.errors import StorageError
from trainctl.weights.mirror import disk

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 2**20


FILLING = """
    mount -t tmpfs -o size=100m none "$1"
    mkdir "$1/mirror"
    "$2" -c '
import sys
from pathlib import Path
from tests.support import mirroring
from trainctl.weights.mirror import directory
checked = directory.require_space
def fill(root, missing):
    checked(root, missing)
    with open(sys.argv[1] + "/filler", "wb") as out:
        out.write(bytes(disk_free(root) - 12 * 2**20))
from trainctl.weights.mirror.disk import free_bytes as disk_free
directory.require_space = fill
sys.exit(mirroring.main(sys.argv[1] + "/mirror", sys.argv[2], str(2**20)))
' "$1" "$3" && exit 9
    rm "$1/filler"
    exec "$2" -m tests.support.mirroring "$1/mirror" "$3" 1048576
"""
"""Mirror to a disk with 12 MiB left, which has to fail, and again when there is room."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", {"model.safetensors": noise(24 * CHUNK), "config.json": b"{}"})
        yield running


def in_namespace(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script where it may mount; the test is skipped where the kernel forbids that."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no private mount namespace here")
    return subprocess.run(
        [*alone, "sh", "-ec", script, "sh", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_too_little_space_is_said_before_anything_moves(hub: Hub, tmp_path: Path) -> None:
    """A disk that can't hold it is found out beforehand: the error has the place, the need and what is free."""
    script = 'mount -t tmpfs -o size=60m none "$1"; exec "$2" -m tests.support.mirroring "$1" "$3"'
    done = in_namespace(script, str(tmp_path), sys.executable, hub.url)
    found = answer(done)
    assert done.returncode == 1
    assert found["error"] == "StorageError"
    assert str(tmp_path) in found["text"]
    assert "free" in found["text"]
    assert not hub.asked("model.safetensors")


def test_a_disk_that_fills_up_meanwhile_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    """ENOSPC in the middle is StorageError; with space again, the next run asks only for the rest."""
    done = in_namespace(FILLING, str(tmp_path), sys.executable, hub.url)
    assert done.returncode == 0, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if '"error"' in line]
    assert len(errors) == 1
    assert json.loads(errors[0])["error"] == "StorageError"
    assert "is full" in errors[0]
    second = hub.asked("model.safetensors")[-1]
    assert int(second.headers["Range"][6:-1]) >= 2 * CHUNK


def test_a_disk_that_fills_up_amid_a_pack_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    """ENOSPC while small files are written is StorageError; with space again most of them are not asked for again."""
    names = [f"{number:03}.bin" for number in range(200)]
    hub.add("acme/model", {name: noise(100_000, number) for number, name in enumerate(names)})
    done = in_namespace(FILLING, str(tmp_path), sys.executable, hub.url)
    assert done.returncode == 0, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if '"error"' in line]
    assert len(errors) == 1
    assert "is full" in json.loads(errors[0])["text"]
    assert sum(len(hub.asked(name)) for name in names) < 300


def test_a_read_only_file_system_is_named(hub: Hub, tmp_path: Path) -> None:
    """EROFS is StorageError that says read-only and where."""
    script = 'mount -t tmpfs -o ro none "$1"; exec "$2" -m tests.support.mirroring "$1" "$3"'
    found = answer(in_namespace(script, str(tmp_path), sys.executable, hub.url))
    assert found["error"] == "StorageError"
    assert "read-only" in found["text"]
    assert str(tmp_path) in found["text"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_forbidden_directory_is_named(tmp_path: Path) -> None:
    """A mirror this user may not write to is StorageError that names it."""
    tmp_path.chmod(0o500)
    source = MemorySource({"w": b"x"})
    with pytest.raises(StorageError, match="may not be written"):
        mirror_at(tmp_path / "m").mirror(source.resolve("file:///x", None, None), source, REFERENCE)


def test_a_file_in_the_place_of_the_mirror_is_an_error(tmp_path: Path) -> None:
    """A mirror whose path is a file is StorageError, when planning and when mirroring."""
    place = tmp_path / "mirror"
    place.write_text("not a directory")
    source = MemorySource({"w": b"x"})
    resolved = source.resolve("file:///x", None, None)
    with pytest.raises(StorageError, match=str(place)):
        mirror_at(place).mirror(resolved, source, REFERENCE)
    assert mirror_at(place).mirrored_bytes(resolved) == (0, None)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"sha256": 1}', b"[]", b"\xff"])
def test_a_damaged_fingerprint_record_costs_nothing(tmp_path: Path, damage: bytes) -> None:
    """A record that can't be read is no record: the content is learned from the blob or fetched again."""
    source = MemorySource({"w": noise(300)})
    resolved = source.resolve("file:///x", None, None)
    mirror = mirror_at(tmp_path, 64)
    listing = mirror.mirror(resolved, source, REFERENCE)
    for record in tmp_path.glob("fingerprints/*/*"):
        record.write_bytes(damage)
    source.asked.clear()
    assert mirror.mirror(resolved, source, REFERENCE).id == listing.id
    assert source.asked == []
    assert_sound(tmp_path)


def test_a_blob_that_lost_bytes_is_fetched_again(tmp_path: Path) -> None:
    """A blob of the wrong size, or a lost one, counts as missing: the plan says so and mirroring mends it."""
    source = MemorySource({"w": noise(300), "v": noise(200, 1)})
    resolved = source.resolve("file:///x", None, None)
    mirror = mirror_at(tmp_path, 64)
    listing = mirror.mirror(resolved, source, REFERENCE)
    blob = Path(place_of(mirror, listing.files[0].sha256).path)
    blob.chmod(0o600)
    blob.write_bytes(b"short")
    done, known = mirror.mirrored_bytes(resolved)
    assert (done, known) == (resolved.size - listing.files[0].size, None)
    mirror.mirror(resolved, source, REFERENCE)
    assert contents(mirror, listing.id) == source.files


def test_free_space_is_that_of_the_nearest_directory(tmp_path: Path) -> None:
    """Free space can be asked for a mirror that does not exist yet."""
    assert disk.free_bytes(tmp_path / "a" / "b") == pytest.approx(
        disk.free_bytes(tmp_path), abs=2**28
    )
