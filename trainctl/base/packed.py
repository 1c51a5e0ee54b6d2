"""Long sequences that memory doesn't grow with: beyond some thousand rows they lie in a temporary file that nobody else sees."""

from __future__ import annotations

import heapq
import marshal
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Dict, Generic, List, Sequence, Tuple, TypeVar, overload

from trainctl.base.temporary import named_if_full, temporary_file

Row = TypeVar("Row")
AS_TUPLE = 10_000
"""Up to so many rows a tuple is as good."""
_BLOCK = 256
_RUN = 20_000
"""Rows that are sorted in memory."""
_MOST_RUNS = 64
"""So many runs become one: each has a file open, and a block in memory while they are merged."""
_HELD_BLOCKS = 32
"""In memory at a time, beside the one that is walked through: what is asked for by place lies near what was."""


class Packed(Sequence[Row]):
    """Rows in blocks of a file; some blocks at a time are in memory. ``make`` makes a row of its plain values.

    Read it from several threads, once all rows are there.
    """

    def __init__(self, rows: Iterable[Sequence[Any]], make: Callable[..., Row]) -> None:
        self._make = make
        self._file = temporary_file(self)
        self._ends: List[int] = [0]
        self._count = 0
        self._held: Dict[int, List[Row]] = {}
        self.extend(rows)

    def extend(self, rows: Iterable[Sequence[Any]]) -> None:
        """Put more behind those that are there, before anybody reads; these are so many that they fill blocks."""
        rows = iter(rows)
        while block := list(islice(rows, _BLOCK)):
            self._count += len(block)
            with named_if_full():
                self._ends.append(self._ends[-1] + self._file.write(marshal.dumps(block)))
        with named_if_full():
            self._file.flush()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        for number in range(len(self._ends) - 1):
            yield from self._block(number)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        place = range(self._count)[index]
        return self._near(place // _BLOCK)[place % _BLOCK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Packed, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _near(self, number: int) -> List[Row]:
        """A block that is kept for a while; the one that was asked for longest ago goes."""
        block = self._held.pop(number, None) or self._block(number)
        self._held[number] = block
        if len(self._held) > _HELD_BLOCKS:
            self._held.pop(next(iter(self._held)), None)
        return block

    def _block(self, number: int) -> List[Row]:
        start, end = self._ends[number : number + 2]
        data = os.pread(self._file.fileno(), end - start, start)
        return [self._make(*row) for row in marshal.loads(data)]  # noqa: S302  nobody else wrote it


class Arriving(Generic[Row]):
    """Takes rows as they come, some at a time, and in the end is the sequence of all: a tuple, or packed where there are many."""

    def __init__(self, values: Callable[[Row], Sequence[Any]], make: Callable[..., Row]) -> None:
        self._values = values
        self._make = make
        self._few: List[Row] = []
        self._many: Packed[Row] | None = None

    def add(self, rows: Iterable[Row]) -> None:
        """These come next."""
        rows = iter(rows)
        while some := list(islice(rows, _BLOCK)):
            self._few += some
            if len(self._few) > AS_TUPLE:
                self._put_away(len(self._few) // _BLOCK * _BLOCK)

    def all(self) -> Sequence[Row]:
        """Every row that came, in order; none may come after that."""
        if self._many is None:
            return tuple(self._few)
        self._put_away(len(self._few))
        return self._many

    def _put_away(self, count: int) -> None:
        some, self._few = self._few[:count], self._few[count:]
        if self._many is None:
            self._many = Packed((), self._make)
        self._many.extend(map(self._values, some))


def packed(
    rows: Iterable[Row], values: Callable[[Row], Sequence[Any]], make: Callable[..., Row]
) -> Sequence[Row]:
    """The rows in their order: a tuple, or packed where there are many. ``values`` are those ``make`` makes a row of."""
    rows = iter(rows)
    first = tuple(islice(rows, AS_TUPLE))
    following = list(islice(rows, 1))
    if not following:
        return first
    return Packed((values(row) for each in (first, following, rows) for row in each), make)


def packed_sorted(
    rows: Iterable[Row], values: Callable[[Row], Tuple[Any, ...]], make: Callable[..., Row]
) -> Sequence[Row]:
    """The same, sorted by their values: by runs, which are then merged."""
    rows = iter(rows)

    def run() -> Sequence[Row]:  # nothing holds it when the next begins
        return packed(sorted(islice(rows, _RUN), key=values), values, make)

    def merged(some: List[Sequence[Row]]) -> Sequence[Row]:
        return some[0] if len(some) == 1 else packed(heapq.merge(*some, key=values), values, make)

    runs: List[Tuple[int, Sequence[Row]]] = []  # each with how often its rows were merged
    for one in iter(run, ()):
        runs.append((0, one))
        while len(runs) >= _MOST_RUNS and runs[-_MOST_RUNS][0] == (level := runs[-1][0]):
            runs[-_MOST_RUNS:] = [(level + 1, merged([one for _, one in runs[-_MOST_RUNS:]]))]
    return merged([each for _, each in runs]) if runs else ()
