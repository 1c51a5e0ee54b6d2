"""Which packs a collection takes away: those that nobody needs, and those of which too little is needed. DESIGN.md, "Packs"."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainctl.base import below
from trainctl.node.content.digests import Digests
from trainctl.node.content.pack_index import Row, rows_of
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.keeping import Keeping
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.packed import read_index, repack, rows_at, wrong_rows
from trainctl.weights.mirror.packing import MOST_BYTES

_LITTLE = 0.5
_SMALL_BYTES = MOST_BYTES // 4
_MOST_SMALL = 16
_MOST_DOUBTFUL = 8
"""Packs whose contents are looked for in others at a time."""


@dataclass(frozen=True)
class Doomed:
    """A pack that is to go. ``contents`` of it are needed by nobody, with so many ``bytes``; the others lie in a new pack first: ``places`` are theirs in its index."""

    path: Path
    contents: int
    bytes: int
    places: Sequence[int] = ()

    def kept(self) -> list[Row]:
        """What is needed of it. It is read again, as there may be millions in all."""
        return rows_at(self.path, self.places)


class _Split:
    """What of a pack is needed, and what of that another pack before it seems to have, too: places in its index, as few bytes each."""

    def __init__(self, path: Path, needed: Keeping, met: Digests) -> None:
        self.path = path
        self.needed = array("I")
        self.doubles = array("I")
        self.rows = self.size = self.used = 0
        for place, row in enumerate(rows_of(read_index(path))):
            self.rows += 1
            self.size += row.length
            if (name := row.digest.hex()) not in needed:
                continue
            if met.add(name):
                self.keep(place, row)
            else:
                self.doubles.append(place)

    def keep(self, place: int, row: Row) -> None:
        """It is needed here."""
        self.needed.append(place)
        self.used += row.length

    @property
    def doomed(self) -> Doomed:
        """The pack as one that goes."""
        size = self.size if self.rows else _left(self.path)
        return Doomed(self.path, self.rows - len(self.needed), size - self.used, self.needed)


def doomed_packs(packs: Sequence[Path], needed: Keeping) -> list[Doomed]:
    """What goes of these when such contents are needed: one that lies in two packs is needed in one."""
    met = Digests()
    found, small = [], []
    for path in packs:
        one = _Split(path, needed, met)
        if not one.needed or one.used < _LITTLE * one.size:
            found.append(one)
        elif one.size < _SMALL_BYTES:
            small.append(one)
    found += small if len(small) > _MOST_SMALL else []
    doubtful = [one for one in found if one.doubles]
    while some := doubtful[:_MOST_DOUBTFUL]:
        _keep_first(packs, some)
        doubtful = doubtful[_MOST_DOUBTFUL:]
    return [one.doomed for one in found]


def _keep_first(packs: Iterable[Path], some: Iterable[_Split]) -> None:
    """What only seems to lie in another pack before is needed after all: whoever has a content first is found by all of its digest."""
    splits = {one.path: (one, set(one.doubles)) for one in some}
    wanted = {
        row.digest
        for path, (_, doubles) in splits.items()
        for place, row in enumerate(rows_of(read_index(path)))
        if place in doubles
    }
    for path in packs:
        split, doubles = splits.get(path, (None, ()))
        for place, row in enumerate(rows_of(read_index(path)) if wanted else ()):
            if row.digest in wanted:
                wanted.discard(row.digest)
                if split is not None and place in doubles:
                    split.keep(place, row)


def move_kept(layout: Layout, doomed: Iterable[Doomed]) -> list[Doomed]:
    """Put what is needed of them into new packs; those that may go then. One that isn't right stays, for a verification."""
    sound = [one for one in doomed if not wrong_rows(one.path, one.kept())]
    repack(layout, ((one.path, one.kept()) for one in sound))
    return sound


def needed_again(
    layout: Layout, doomed: Iterable[tuple[Doomed, bytes]], needed: Keeping
) -> list[Doomed]:
    """Of packs that are out of sight, each with its index, those with something that is needed by now and lies nowhere else."""
    here = Contents(layout)

    def is_needed(row: Row) -> bool:
        name = row.digest.hex()
        return name in needed and not here.has(name, row.length)

    return [one for one, index in doomed if any(map(is_needed, rows_of(index)))]


def _left(pack: Path) -> int:
    """What there is of a pack that was half removed, in bytes."""
    return below.file_size(f"{pack}/data") or 0
