"""Which packs a collection takes away: those that nobody needs, and those of which too little is needed. DESIGN.md, "Packs"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainctl.node.content.pack_index import Row, rows_of
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.packed import packs_of, read_index, repack, wrong_rows
from trainctl.weights.mirror.packing import MOST_BYTES

_LITTLE = 0.5
_SMALL_BYTES = MOST_BYTES // 4
_MOST_SMALL = 16


@dataclass(frozen=True)
class Doomed:
    """A pack that is to go. ``contents`` of it are needed by nobody, with so many ``bytes``; the others, ``kept``, lie in a new pack first."""

    path: Path
    contents: int
    bytes: int
    kept: tuple[Row, ...] = ()


def doomed_packs(layout: Layout, named: set[bytes]) -> list[Doomed]:
    """What goes when these digests are needed, which are taken out of the set: a content that lies in two packs is needed in one."""
    found, small = [], []
    for path in packs_of(layout):
        rows = list(rows_of(read_index(path)))
        kept = tuple(row for row in rows if row.digest in named)
        named.difference_update(row.digest for row in kept)
        size, used = _bytes(rows) if rows else _left(path), _bytes(kept)
        one = Doomed(path, len(rows) - len(kept), size - used, kept)
        if not kept or used < _LITTLE * size:
            found.append(one)
        elif size < _SMALL_BYTES:
            small.append(one)
    return found + (small if len(small) > _MOST_SMALL else [])


def move_kept(layout: Layout, doomed: Sequence[Doomed]) -> list[Doomed]:
    """Put what is needed of them into new packs; those that may go then. One that isn't right stays, for a verification."""
    sound = [one for one in doomed if not wrong_rows(one.path, one.kept)]
    repack(layout, ((one.path, one.kept) for one in sound))
    return sound


def needed_again(
    layout: Layout, doomed: Iterable[tuple[Doomed, bytes]], named: set[bytes]
) -> list[Doomed]:
    """Of packs that are out of sight, each with its index, those with something that is needed by now and lies nowhere else."""
    here = Contents(layout)
    return [
        one
        for one, index in doomed
        if any(
            row.digest in named and not here.has(row.digest.hex(), row.length)
            for row in rows_of(index)
        )
    ]


def _left(pack: Path) -> int:
    """What there is of a pack that was half removed, in bytes."""
    data = pack / "data"
    return data.stat().st_size if data.exists() else 0


def _bytes(rows: Sequence[Row]) -> int:
    return sum(row.length for row in rows)
