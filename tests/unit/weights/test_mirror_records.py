"""What files of a source turned out to be that doesn't announce it: read once by whoever looks at all of them, and never held."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, contents, mirror_at
from trainctl.base import below
from trainctl.weights.mirror import fetch, records
from trainctl.weights.mirror.known import known
from trainctl.weights.mirror.layout import Content
from trainctl.weights.mirror.recorded import Recorded

FILES = {f"{number:03}": b"%d" % number for number in range(60)}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of records that are read, as often as they are; few files come at a time, and few records are in a file."""
    monkeypatch.setattr(fetch, "AT_ONCE", 6)
    monkeypatch.setattr(records, "_AT_ONCE", 3)
    found: list[str] = []
    really = below.open_file

    def opened(path: str | Path, within: int | None = None) -> int | None:
        if Path(path).parent.parent.name == "small":
            found.append(Path(path).name)
        return really(path, within)

    monkeypatch.setattr(below, "open_file", opened)
    return found


def test_records_are_read_once_in_each_work(tmp_path: Path, read: list[str]) -> None:
    """First mirroring looks at none that it writes; whoever goes on, begins again or asks what is there reads each file of them once, not for
    every part of the source."""
    mirror = mirror_at(tmp_path / "mirror")
    begun = MemorySource(dict(list(FILES.items())[:30]), announce=False)
    mirror.mirror(begun.resolve("memory://model", None, None), begun, REFERENCE, parallelism=1)
    written = sorted(one.name for one in mirror.root.glob("fingerprints/small/*/*"))
    assert (read, len(written)) == ([], 10)

    source = MemorySource(FILES, announce=False)
    resolved = source.resolve("memory://model", None, None)
    (found,), _ = known(mirror, [resolved])
    assert (found.here, sorted(read)) == (sum(map(len, list(FILES.values())[:30])), written)

    read.clear()
    listing = mirror.mirror(resolved, source, REFERENCE, parallelism=1)
    assert (len(source.asked), sorted(read)) == (30, written)
    assert contents(mirror, listing.id) == FILES

    read.clear()
    mirror.mirror(resolved, source, REFERENCE, parallelism=1)
    assert (len(source.asked), len(read), len(set(read))) == (30, 20, 20)


def test_a_table_finds_what_was_put_in_last() -> None:
    """Also fingerprints that want the same place, the last one, in a table that is too small."""
    keys = [f"{'f' * 60}{number:04x}" for number in range(50)]
    other = hashlib.sha256(b"other").hexdigest()
    rows = [(key, hashlib.sha256(key.encode()).hexdigest(), 1) for key in (*keys, other)]
    again = [(key, sha256, 10**18 + number) for number, (key, sha256, _) in enumerate(rows)]
    table = Recorded([*rows, *again], 3)
    assert dict(table.find([*keys, other])) == {
        key: Content(sha256, size) for key, sha256, size in again
    }
    assert dict(table.find(["0" * 63 + "1", "f" * 64])) == {}


def test_an_empty_table_has_nothing() -> None:
    """Nothing has been recorded."""
    assert dict(Recorded([], 0).find(["0" * 63 + "1", "f" * 64])) == {}
