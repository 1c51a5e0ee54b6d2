"""What a mirror tells of a source of which a part has arrived, before anything moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, left_behind, mirror_at
from tests.support.weights_data import noise
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceCut
from trainctl.weights.mirror import DirectoryMirror
from trainctl.weights.mirror.known import Known, known, missing, stored_bytes
from trainctl.weights.mirror.partial import Arrived

URI = "hf://acme/model"
CHUNK = 4096
DATA = noise(5 * CHUNK)


def broken_off(root: Path, pieces: int) -> tuple[DirectoryMirror, ResolvedSource]:
    """A mirror into which so many half chunks of a file came."""
    source = MemorySource({"w": DATA}, piece=CHUNK // 2, cut_after=pieces, error=SourceCut("cut"))
    resolved = source.resolve(URI, None, None)
    mirror = mirror_at(root, CHUNK, attempts=1)
    with pytest.raises(SourceCut):
        mirror.mirror(resolved, source, REFERENCE)
    return mirror, resolved


def look(mirror: DirectoryMirror, resolved: ResolvedSource) -> Known:
    """What the mirror tells of one source; nothing in it is damaged."""
    (found,), damaged = known(mirror, [resolved])
    assert damaged == ()
    return found


def test_what_has_arrived_of_a_file_is_known(tmp_path: Path) -> None:
    """Of a transfer that broke off in the third chunk two needn't come again, and what is on the disk needs no more room."""
    mirror, resolved = broken_off(tmp_path, 5)

    found = look(mirror, resolved)

    assert found.arrived == {0: Arrived(2 * CHUNK, 5 * CHUNK // 2)}
    assert (found.here, found.had, found.to_store) == (0, 2 * CHUNK, 5 * CHUNK // 2)
    assert [(file.path, left) for file, left in missing(resolved, found)] == [("w", 3 * CHUNK)]
    assert stored_bytes(mirror) == 5 * CHUNK // 2


def test_chunks_that_came_out_of_turn_come_again(tmp_path: Path) -> None:
    """A hole before them takes no room, and what the journal doesn't speak of is fetched."""
    mirror, resolved = broken_off(tmp_path, 2)
    (left,) = tmp_path.glob("partial/*/data")
    with left.open("r+b") as stream:
        stream.seek(4 * CHUNK)
        stream.write(DATA[4 * CHUNK :])

    arrived = look(mirror, resolved).arrived[0]

    assert arrived.good == CHUNK
    assert 2 * CHUNK <= arrived.laid < left.stat().st_size


@pytest.mark.parametrize("announce", [True, False])
def test_what_was_written_of_a_pack_is_known(tmp_path: Path, *, announce: bool) -> None:
    """Small files that a killed process had put into a pack needn't come again."""
    files = {f"{number:04}": noise(10, number) for number in range(600)}
    resolved, _, whole = left_behind(tmp_path, files, announce=announce)

    found = look(mirror_at(tmp_path), resolved)

    assert 0 < whole < len(files)
    assert found.arrived == dict.fromkeys(range(whole), Arrived(10, 10))
    assert sum(left for _, left in missing(resolved, found)) == 10 * (len(files) - whole)


def test_a_source_that_is_whole_has_nothing_on_its_way(tmp_path: Path) -> None:
    """What lies in the mirror as content counts once."""
    source = MemorySource({"w": noise(5 * CHUNK), "small": b"x"}, piece=CHUNK)
    resolved = source.resolve(URI, None, None)
    mirror = mirror_at(tmp_path, CHUNK)
    mirror.mirror(resolved, source, REFERENCE)

    found = look(mirror, resolved)

    assert (found.arrived, found.had, found.to_store) == ({}, resolved.size, 0)
