"""Long sequences that lie in a file behave like tuples."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainctl.base import packed
from trainctl.base.json import digest
from trainctl.base.listing import (
    ListedFile,
    Listing,
    ResolvedSource,
    SourceFile,
    in_order,
    read_files,
)
from trainctl.base.packed import AS_TUPLE, Arriving, Packed


def made(count: int) -> list[SourceFile]:
    """So many files, with odd names among them, in no order."""
    files = [
        SourceFile(f"{number % 97}/f\udce4{number}", number, f"git:{number}")
        for number in range(count)
    ]
    random.Random(0).shuffle(files)
    return files


def test_few_are_a_tuple() -> None:
    """What is short is not put anywhere."""
    assert in_order(made(AS_TUPLE)) == tuple(sorted(made(AS_TUPLE)))


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort so few at a time that some thousands are many."""
    monkeypatch.setattr(packed, "_RUN", 5_000)
    monkeypatch.setattr(packed, "AS_TUPLE", 1_000)


@pytest.mark.usefixtures("short_runs")
def test_many_are_the_same_sorted() -> None:
    """More than a run of sorting takes: same order, length, rows by place and slice, equality with a tuple."""
    count = 12_001
    files, expected = in_order(made(count)), sorted(made(count))

    assert isinstance(files, Packed)
    assert len(files) == count
    assert files == tuple(expected)
    assert files != tuple(expected[:-1])
    assert list(files) == expected
    assert (files[0], files[-1], files[7_000]) == (expected[0], expected[-1], expected[7_000])
    assert files[5:8] == expected[5:8]
    with pytest.raises(IndexError):
        files[count]


def test_a_pin_does_not_depend_on_how_files_are_kept() -> None:
    """It is the digest of the whole list, as it is for few."""
    files = [SourceFile(f"f{number:06}", number, f"git:{number}") for number in range(AS_TUPLE + 1)]

    pin = ResolvedSource("hf://a/b", "1", in_order(files)).pin

    assert pin == digest([[file.path, file.size, file.validator] for file in files])


def peak(count: int) -> int:
    """The bytes that it takes to sort so many, and to go through them."""
    tracemalloc.start()
    rows = in_order(SourceFile(f"{one:09}", one, f"git:{one:040}") for one in range(count))
    assert sum(1 for _ in rows) == count
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


@pytest.mark.usefixtures("short_runs")
def test_many_are_not_in_memory() -> None:
    """Twice as many rows take no more memory, but for where their blocks lie."""
    assert peak(40_000) < 1.2 * peak(20_000)


@pytest.mark.usefixtures("short_runs")
def test_of_what_is_sorted_one_run_is_in_memory() -> None:
    """The one before has gone when the next is gathered."""
    assert peak(10_000) < 1.25 * peak(5_000)


def test_sorting_has_few_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are: a process may have a thousand files."""
    monkeypatch.setattr(packed, "_MOST_RUNS", 3)
    monkeypatch.setattr(packed, "_RUN", 300)
    monkeypatch.setattr(packed, "AS_TUPLE", 100)
    opened = []

    def files() -> Iterator[SourceFile]:
        for number, file in enumerate(made(9_000)):
            if number % 300 == 0:
                opened.append(len(list(Path("/proc/self/fd").iterdir())))
            yield file

    assert list(in_order(files())) == sorted(made(9_000))
    assert max(opened) - opened[0] <= 3 * 3


def test_what_arrives_is_one_sequence_in_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever portions: the last block alone may be short."""
    monkeypatch.setattr(packed, "AS_TUPLE", 600)
    arriving = Arriving(tuple, lambda *row: row)
    opened = len(list(Path("/proc/self/fd").iterdir()))

    for first in range(0, 5_000, 7):
        arriving.add((one, "x") for one in range(first, min(first + 7, 5_000)))
    found = arriving.all()

    assert found == tuple((one, "x") for one in range(5_000))
    assert (found[0], found[4_321], found[-1]) == ((0, "x"), (4_321, "x"), (4_999, "x"))
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened + 1


def test_a_listing_is_read_file_by_file(tmp_path: Path) -> None:
    """Names with quotes and brackets, long lists of chunks, and none at all; one that is cut off is an error."""
    files = (
        ListedFile('a "],[{ b', 1, "0" * 64),
        ListedFile("big\u2028", 2**40, "1" * 64, tuple(f"{one:064}" for one in range(5000))),
        *(ListedFile(f"f{one}", one, f"{one:064}") for one in range(3000)),
    )
    place = tmp_path / "listing.json"
    for listing in (Listing(tuple(sorted(files))), Listing(())):
        place.write_bytes(listing.to_bytes())
        assert tuple(read_files(place)) == listing.files

    place.write_bytes(Listing(tuple(sorted(files))).to_bytes()[:-100])
    with pytest.raises(ValueError, match="cut off"):
        list(read_files(place))
    place.write_text(json.dumps({}))
    with pytest.raises(ValueError, match="no list of files"):
        list(read_files(place))
