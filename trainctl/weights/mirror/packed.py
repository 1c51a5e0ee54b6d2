"""Packs that are whole: what is in them, whether it is right, and how some of it gets into new ones. DESIGN.md, "Packs"."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainctl.base import below
from trainctl.base.json import hex_digest
from trainctl.node.content.pack_index import Row, rows_of
from trainctl.node.content.runs import Place, read_runs
from trainctl.weights.mirror.disk import scratch_name
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.packing import Packing

_KEY = hex_digest("packs")


def read_index(pack: Path) -> bytes:
    """A pack's index; nothing where there is none, or the disk can't read it."""
    try:
        with os.fdopen(below.open_regular(f"{pack}/index"), "rb") as stream:
            return stream.read()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EIO):
            raise
        return b""


def rows_at(pack: Path, places: Iterable[int]) -> list[Row]:
    """The contents of a pack that stand at these places of its index; none where somebody else has taken it away."""
    rows = list(rows_of(read_index(pack)))
    return [rows[place] for place in places] if rows else []


def wrong_rows(pack: Path, rows: Sequence[Row]) -> list[Row]:
    """Those of a pack's contents that are not what their digests say."""
    try:
        descriptor = below.open_regular(f"{pack}/data")
    except FileNotFoundError:
        return list(rows)
    try:
        return list(_wrong(descriptor, rows))
    finally:
        os.close(descriptor)


def _wrong(descriptor: int, rows: Sequence[Row]) -> Iterator[Row]:
    size = os.fstat(descriptor).st_size
    there = [row for row in rows if row.offset + row.length <= size]
    yield from (row for row in rows if row.offset + row.length > size)
    try:
        wrong = [row for row, data in _read(descriptor, there) if _digest(data) != row.digest]
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        wrong = list(there)
        if len(there) > 1:  # the disk can't read some of it
            wrong = [bad for row in there for bad in _wrong(descriptor, [row])]
    yield from wrong


def repack(layout: Layout, kept: Iterable[tuple[Path, Sequence[Row]]]) -> None:
    """Have these contents of packs, which are right, in new ones. Of a pack that has gone somebody else did the same, or will put it back."""
    packing: Packing | None = None
    try:
        for digest, data in _contents(kept):
            if packing is not None and not packing.takes(len(data)):
                full, packing = packing, None
                full.finish()
            packing = packing or Packing(layout, _KEY)
            if digest not in packing:
                packing.append(digest, data)
    except BaseException:
        if packing is not None:
            packing.discard()
        raise
    if packing is not None:
        packing.finish()


def _contents(kept: Iterable[tuple[Path, Sequence[Row]]]) -> Iterator[tuple[bytes, memoryview]]:
    for pack, rows in kept:
        try:
            descriptor = below.open_regular(f"{pack}/data")
        except FileNotFoundError:
            continue
        try:
            ordered = sorted(rows, key=lambda row: row.offset)
            yield from ((row.digest, data) for row, data in _read(descriptor, ordered))
        finally:
            os.close(descriptor)


def remove(layout: Layout, pack: Path) -> None:
    """Take a pack away at once, if nobody else has."""
    gone = layout.partial / scratch_name()
    with contextlib.suppress(FileNotFoundError):
        below.move(layout.root, pack, gone)
        below.remove_directory(layout.root, gone, ("index", "data"))


def _read(descriptor: int, rows: Sequence[Row]) -> Iterator[tuple[Row, memoryview]]:
    places = (Place(descriptor, row.offset, row.offset + row.length) for row in rows)
    return zip(rows, read_runs(places))


def _digest(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()
