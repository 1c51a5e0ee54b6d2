"""Every content of a mirror's directory, read and hashed: files of their own, and slices of packs."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trainctl.base import below
from trainctl.base.json import hex_digest
from trainctl.base.packed import Arriving
from trainctl.node.content.digests import Digests
from trainctl.node.content.pack_index import Row, is_right, rows_of
from trainctl.weights.mirror.fetch import Tally
from trainctl.weights.mirror.hashing import file_digests, file_sha256
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


class Chunked:
    """Which chunks contents have: a number for each, by which nobody is told from another, nor is anything missed but one claim in very many."""

    def __init__(self) -> None:
        self._contents = Digests()
        self._claims = Digests()
        self._lock = threading.Lock()

    def add(self, sha256: str, chunks: Sequence[str]) -> None:
        """This content was read, and has these."""
        with self._lock:
            self._contents.add(sha256)
            self._claims.add(_claim(sha256, chunks))

    def denies(self, sha256: str, chunks: Sequence[str]) -> bool:
        """Whether the content was read and has others."""
        return sha256 in self._contents and _claim(sha256, chunks) not in self._claims


def _claim(sha256: str, chunks: Sequence[str]) -> str:
    return hex_digest([sha256, *chunks])


@dataclass
class Hashed:
    """What isn't right, however much: contents, and ``files`` of packs that are not as they were written, with what is wrong.

    ``right`` are the places, in the index, of what is right in packs with something wrong. ``chunked`` says of large contents that are right
    which chunks they have.
    """

    wrong: Sequence[Wrong] = ()
    files: dict[Path, str] = field(default_factory=dict)
    right: dict[Path, array[int]] = field(default_factory=dict)
    chunked: Chunked = field(default_factory=Chunked)

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
        for some in _wrong_files(layout, tally, pool, found.chunked):
            wrong.add(some)
        for pack in layout.pack_places():
            wrong.add(_look_through(pack, found, tally, pool))
    found.wrong = wrong.all()
    return found


def _wrong_files(
    layout: Layout, tally: Tally, pool: ThreadPoolExecutor, chunked: Chunked
) -> Iterator[list[Wrong]]:
    def look(blob: tuple[Path, int]) -> bool:
        path, size = blob
        if layout.chunk_count(size):
            sha256, chunks = file_digests(path, size, layout.chunk_bytes)
            if sha256 == path.name:
                chunked.add(sha256, chunks)
        else:
            sha256 = file_sha256(path)
        tally.add(size, 1)
        return sha256 in (path.name, None)

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
