"""How many bytes of memory something takes at most for so many small files, measured in a process of its own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainctl.base import packed
from trainctl.base.listing import ListedFile, Listing
from trainctl.node.system import numbers

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
"""Bytes a file: an object for each takes some hundreds."""
_FEW, _MANY = 1_500, 6_000


def growth(what: str, place: Path, module: str) -> float:
    """How many bytes more of memory each file takes. ``module`` knows what is done; it gets a directory of its own."""
    found = []
    for count in (_FEW, _MANY):
        (place / str(count)).mkdir()
        found.append(_peak(what, count, place / str(count), module))
    return (found[1] - found[0]) / (_MANY - _FEW)


def _peak(what: str, count: int, place: Path, module: str) -> int:
    """Bytes, as a process of its own says."""
    done = subprocess.run(
        [sys.executable, "-m", module, what, str(count), str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def listing_of(first: int, count: int) -> Listing:
    """So many small files, in directories of some hundreds."""
    return Listing(tuple(_files(first, count)))


def _files(first: int, count: int) -> Iterator[ListedFile]:
    for one in range(first, first + count):
        data = _data(one)
        yield ListedFile(
            f"{one // 500:04}/{one:08}", len(data), hashlib.sha256(data).hexdigest(), ()
        )


def _data(number: int) -> bytes:
    """A content of its own for each number."""
    return b"%d" % number


def measured(kinds: Mapping[str, Callable[[Path, int], Callable[[], object]]]) -> int:
    """Do it with few files, for what is made once; then with as many as the arguments say, and print the peak."""
    what, count, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    packed.AS_TUPLE = 500
    packed._RUN, packed._BLOCK = 1000, 64
    packed._MOST_RUNS = 3
    numbers._SHELVES = 16
    list(
        map(sys.intern, map(str, range(10**5)))
    )  # pathlib does, and the table doubles now and then
    held = [
        sys.intern(f"{one}") for one in range(10**5)
    ]  # pathlib does, and makes a small table anew often
    begun = kinds[what]
    begun(place / "few", 10)()
    do = begun(place / "many", count)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    do()
    print(tracemalloc.get_traced_memory()[1] - before)
    return 0 if held else 1
