"""Reading many small contents: those that lie close together in one file are read at once."""

from __future__ import annotations

import errno
import os
from typing import Iterable, Iterator, List, NamedTuple

_RUN_BYTES = 2**20


class Place(NamedTuple):
    """Where a content lies in an open file; ``end`` is behind its last byte."""

    descriptor: int
    start: int
    end: int


class _Run:
    """Contents of one file, not much of which is none of theirs."""

    def __init__(self, first: Place) -> None:
        self._places = [first]
        self._start, self._end = first.start, first.end
        self._wanted = first.end - first.start

    def takes(self, place: Place) -> bool:
        """Whether the content lies close enough; it is one of the run then."""
        start, end = min(self._start, place.start), max(self._end, place.end)
        wanted = self._wanted + place.end - place.start
        if place.descriptor != self._places[0].descriptor or end - start > min(
            _RUN_BYTES, 2 * wanted
        ):
            return False
        self._places.append(place)
        self._start, self._end, self._wanted = start, end, wanted
        return True

    def read(self) -> Iterator[memoryview]:
        data = memoryview(_read(self._places[0].descriptor, self._start, self._end))
        return (data[one.start - self._start : one.end - self._start] for one in self._places)


def read_runs(places: Iterable[Place]) -> Iterator[memoryview]:
    """The contents in their order. OSError where a file ends before a content does."""
    run = None
    for place in places:
        if run is None or not run.takes(place):
            if run is not None:
                yield from run.read()
            run = _Run(place)
    if run is not None:
        yield from run.read()


def _read(descriptor: int, start: int, end: int) -> bytes:
    parts: List[bytes] = []
    while start < end:
        part = os.pread(descriptor, end - start, start)
        if not part:
            raise OSError(errno.EIO, "a content is cut off")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
