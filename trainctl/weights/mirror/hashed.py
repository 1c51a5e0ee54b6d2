"""Every content of a mirror's directory, read and hashed: files of their own, and slices of packs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trainctl.node.content.pack_index import Row, is_right, rows_of
from trainctl.node.content.packed import Arriving
from trainctl.node.system import below
from trainctl.weights.mirror.fetch import Tally
from trainctl.weights.mirror.hashing import file_sha256
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.packed import (
    read_index,
    remove,
    repack,
    rows_at,
    wrong_rows,
)

_FILES_AT_ONCE = 1000
_ROWS_AT_ONCE = 256


class Wrong(NamedTuple):
    """A content that isn't right: in a directory or a pack. ``doubtful``: only a damaged index speaks of it."""

    place: str
    digest: bytes
    size: int
    doubtful: bool = False


@dataclass
class Hashed:
    """What isn't right, however much: contents, and ``files`` of packs that are not as they were written, with what is wrong.

    ``right`` are the places, in the index, of what is right in packs with something wrong.
    """

    wrong: Sequence[Wrong] = ()
    files: dict[Path, str] = field(default_factory=dict)
    right: dict[Path, array[int]] = field(default_factory=dict)

    def leave_wrong(self, layout: Layout) -> None:
        """Have no pack with anything wrong: what is right in them lies in others first."""
        repack(layout, ((pack, rows_at(pack, places)) for pack, places in self.right.items()))
        for pack in self.right:
            remove(layout, pack)


def counted(layout: Layout) -> tuple[int, int]:
    """How many contents are there, and their bytes."""
    count = total = 0
    for _, size in layout.blobs():
        count, total = count + 1, total + size
    for pack in layout.pack_places():
        for row in rows_of(read_index(pack)):
            count, total = count + 1, total + row.length
    return count, total


def hash_all(layout: Layout, tally: Tally, parallelism: int) -> Hashed:
    """Read everything; some of it at a time, as there may be millions."""
    found = Hashed()
    wrong = Arriving(tuple, Wrong)
    with ThreadPoolExecutor(max(1, parallelism), thread_name_prefix="verify") as pool:
        for some in _wrong_files(layout, tally, pool):
            wrong.add(some)
        for pack in layout.pack_places():
            wrong.add(_look_through(pack, found, tally, pool))
    found.wrong = wrong.all()
    return found


def _wrong_files(layout: Layout, tally: Tally, pool: ThreadPoolExecutor) -> Iterator[list[Wrong]]:
    def look(blob: tuple[Path, int]) -> bool:
        path, size = blob
        right = file_sha256(path) in (path.name, None)
        tally.add(size, 1)
        return right

    blobs = layout.blobs()
    while some := list(islice(blobs, _FILES_AT_ONCE)):
        wrong = (blob for blob, right in zip(some, pool.map(look, some)) if not right)
        yield [Wrong(str(path.parent), bytes.fromhex(path.name), size) for path, size in wrong]


def _look_through(pack: Path, found: Hashed, tally: Tally, pool: ThreadPoolExecutor) -> list[Wrong]:
    """What is wrong in a pack. One without an index was half removed: nobody finds anything in it."""
    index = read_index(pack)
    numbered = list(enumerate(rows_of(index)))
    rows = sorted((row for _, row in numbered), key=lambda row: row.offset)
    some = [rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE)]

    def look(rows: list[Row]) -> list[Row]:
        wrong = wrong_rows(pack, rows)
        tally.add(sum(row.length for row in rows), len(rows))
        return wrong

    wrong = {row for each in pool.map(look, some) for row in each}
    damaged = not is_right(index) and below.file_size(f"{pack}/index") is not None
    if damaged:
        found.files[pack / "index"] = "index changed"
    elif rows and (below.file_size(f"{pack}/data") or 0) > max(
        row.offset + row.length for row in rows
    ):
        found.files[pack / "data"] = "pack changed"
    if wrong or pack in {path.parent for path in found.files}:
        found.right[pack] = array("I", (place for place, row in numbered if row not in wrong))
    return [Wrong(str(pack), row.digest, row.length, damaged) for row in rows if row in wrong]
