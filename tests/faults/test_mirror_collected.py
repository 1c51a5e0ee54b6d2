"""Collections of a mirror that are killed, and that run beside writers and each other, as processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.collecting import CHUNK_BYTES, files, gc, write
from tests.support.mirrors import assert_sound, contents, mirror_at, stored
from trainctl.weights.mirror import DirectoryMirror

ROOT = Path(__file__).resolve().parents[2]
KILLED = -9


def start(root: Path, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.collecting", str(root), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> int:
    _, err = process.communicate(timeout=300)
    assert process.returncode in (0, KILLED), err.decode()
    return process.returncode


def with_garbage(root: Path) -> tuple[DirectoryMirror, str]:
    """A mirror with a source that is referred to, and one that is not any more; the former's listing."""
    mirror = mirror_at(root, CHUNK_BYTES)
    kept = write(mirror, "keeps", 0)
    write(mirror, "leaves", 1)
    write(mirror, "leaves", 2)
    mirror.drop_reference("leaves", "weights.model")
    return mirror, kept


def check_killed(top: Path, lethal: int) -> int:
    """Kill a collection at one effect: nothing that is referred to is lost, and both ways on are whole."""
    mirror, kept = with_garbage(top / str(lethal))
    code = ended(start(mirror.root, "gc", lethal))
    assert_sound(mirror.root)
    assert contents(mirror, kept) == files(0)
    if lethal % 2:
        assert contents(mirror, write(mirror, "leaves", 1)) == files(1)
        mirror.drop_reference("leaves", "weights.model")
    gc(mirror)
    assert_sound(mirror.root)
    assert contents(mirror, kept) == files(0)
    assert len(stored(mirror.root)) == len(set(files(0).values()))
    assert not list(mirror.root.glob("condemned/*"))
    return code


def test_a_collection_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """At some of its effects; the next collection, or the next writer, makes good what it left."""
    codes = [check_killed(tmp_path, lethal) for lethal in (1, 3, 6, 7, 10, 13)]

    assert KILLED in codes


@pytest.mark.long
def test_a_collection_that_is_killed_anywhere_loses_nothing(tmp_path: Path) -> None:
    """At each of its effects."""
    lethal = 1
    while check_killed(tmp_path, lethal) == KILLED:
        lethal += 1
    assert lethal > 15


def beside(root: Path, times: int) -> list[int]:
    """Two lineages mirror, look at what they have and drop it, while two collections go on all the time."""
    mirror, kept = with_garbage(root)
    writers = [start(root, "write", lineage, times) for lineage in ("one", "two")]
    collections = [start(root, "gc", 0, 10_000) for _ in range(2)]
    try:
        codes = [ended(writer) for writer in writers]
    finally:
        for collection in collections:
            collection.kill()
            collection.communicate()
    assert contents(mirror, kept) == files(0)
    gc(mirror)
    assert_sound(root)
    return codes


def test_writers_beside_collections_find_what_they_mirrored(tmp_path: Path) -> None:
    """Every listing that a writer was handed is whole for as long as it refers to it."""
    assert beside(tmp_path / "mirror", 15) == [0, 0]


@pytest.mark.long
def test_writers_beside_collections_for_long(tmp_path: Path) -> None:
    """The same, hundreds of times."""
    assert beside(tmp_path / "mirror", 400) == [0, 0]
