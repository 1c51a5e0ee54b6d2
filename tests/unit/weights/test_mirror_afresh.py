"""What is lost of a mirror whose records others write: which file of a source has it is their word, and what it has instead is nothing for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    impatient,
    mirror_at,
    place_of,
    stored,
)
from trainctl.errors import SourceDenied
from trainctl.weights.mirror import DirectoryMirror
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.verify import Outcome, Verifying, verify

CHUNK = 1024
URI = "memory://model"


def lost(root: Path, size: int) -> tuple[DirectoryMirror, MemorySource]:
    """A mirror without the only file of a source that doesn't announce what it is."""
    mirror = mirror_at(root, chunk_bytes=CHUNK)
    source = MemorySource({"one": os.urandom(size)}, announce=False, piece=100)
    mirror.mirror(source.resolve(URI, None, None), source, REFERENCE)
    (place,) = {place_of(mirror, one).path for one in stored(mirror.root)}
    Path(place).unlink()
    source.asked.clear()
    return mirror, source


def asking(source: MemorySource) -> Callable[[Mapping[str, object], threading.Event], Origin]:
    """Whom a repair asks."""
    return lambda record, halt: Origin(source, source.resolve(URI, None, None), None, impatient())


@pytest.mark.parametrize("size", [50, CHUNK - 1, 5 * CHUNK])
def test_nothing_of_what_upstream_has_instead_gets_into_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """In a pack, in a file of its own, and of several chunks."""
    monkeypatch.setattr("trainctl.weights.mirror.transfer.PACKED_BYTES", 100)
    mirror, source = lost(tmp_path, size)
    source.files["one"] = b"secret" * (size // 6) + b"-" * (size % 6)

    report = verify(mirror, Verifying(True, asking(source)))

    lying = [path for path in mirror.root.rglob("*") if path.is_file()]
    assert {one.outcome for one in report.findings} == {Outcome.REMOVED}
    assert [path for path in lying if b"secret" in path.read_bytes()] == []


def test_what_came_of_a_missing_content_is_not_fetched_again(tmp_path: Path) -> None:
    """It comes chunk by chunk, and until it is whole nothing is where it belongs."""
    mirror, source = lost(tmp_path, 10 * CHUNK + 5)
    source.cut_after, source.error = 35, SourceDenied("not any more")

    broken = verify(mirror, Verifying(True, asking(source)))
    there = stored(mirror.root)
    source.cut_after = None
    source.asked.clear()
    report = verify(mirror, Verifying(True, asking(source)))

    assert [one.outcome for one in broken.findings] == [Outcome.WRONG]
    assert there == {}
    assert [one.outcome for one in report.findings] == [Outcome.REPAIRED]
    assert min(offset for _, offset in source.asked) == 3 * CHUNK
    assert list(stored(mirror.root).values()) == [10 * CHUNK + 5]
    assert_sound(mirror.root)
