"""Finding contents in the packs of a mirror's directory: ``packs/NAME/`` with ``data`` and ``index``. See weights/DESIGN.md, "Packs"."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from itertools import islice
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Union

from trainctl.base.below import entries, file_size, open_regular
from trainctl.node.content.pack_index import MAGIC, ROW, Row, count_rows, find_row

_HELD_BYTES = 4096
_MOST_OPEN = 32
_ROWS_AT_ONCE = 1024
_ORDINALS = 2**24 - 1
_FEW_PROBES = 256
_ROWS_A_PROBE = 4
"""To look into one index costs rather more than to take so many of its rows into a map."""
_LOST = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO)


class Slice(NamedTuple):
    """A content in a file, which may be its own; offset and length in bytes."""

    path: str
    offset: int
    length: int


class Packs:
    """The packs of a directory as it was when it was last looked at: a pack never changes, but comes and goes. Safe for many threads.

    Contents are asked for one by one. Where that was often in vain, the beginnings of all digests are kept in memory,
    8 bytes each.
    """

    def __init__(self, directory: Union[str, Path]) -> None:
        self._directory = Path(directory)
        self._lock = threading.Lock()
        self._packs: Dict[str, _Pack] = {}
        self._unmapped: List[_Pack] = []
        self._map = _Map(())
        self._last: Optional[_Pack] = None
        self._probes = 0
        self._enough = 0
        self._indexes = _Indexes()
        self.refresh()

    def refresh(self) -> None:
        """Look at the directory again."""
        names = _names(self._directory)
        with self._lock:
            for name in self._packs.keys() - set(names):
                self._packs.pop(name).rows = 0
            for name in names:
                if name not in self._packs:
                    self._packs[name] = _Pack(f"{self._directory}/{name}", self._indexes)
                    self._unmapped.append(self._packs[name])
            self._unmapped = [one for one in self._unmapped if one.rows]
            rows = sum(one.rows for one in self._packs.values())
            self._enough = _FEW_PROBES + rows // _ROWS_A_PROBE

    def find(self, sha256: str) -> Optional[Slice]:
        """Where a content lies; None if it is in no pack."""
        digest = bytes.fromhex(sha256)
        with self._lock:
            for pack in self._likely(digest):
                row = pack.find(digest)
                if row is not None:
                    self._last = pack
                    return Slice(pack.data, row.offset, row.length)
        return None

    def _likely(self, digest: bytes) -> Iterator[_Pack]:
        """The packs to look into; first where the last content was, as neighbours lie together."""
        if self._last is not None:
            yield self._last
        if self._probes > self._enough:
            self._map = _Map(())  # not both in memory
            self._map, self._unmapped, self._probes = _Map(self._packs.values()), [], 0
        yield from self._map.find(digest)
        for pack in self._unmapped:
            self._probes += 1
            yield pack


class _Indexes:
    """Indexes that are read; a few of them are kept open."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, path: str, length: int, offset: int) -> bytes:
        """So many bytes of one of them."""
        if path not in self._open:
            self._open[path] = open_regular(path)
            if len(self._open) > _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(path)
        return os.pread(self._open[path], length, offset)

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)


class _Pack:
    """One pack; ``rows`` is how many contents it has. One that is damaged or has gone has none."""

    def __init__(self, directory: str, indexes: _Indexes) -> None:
        self.data = f"{directory}/data"
        self.rows = self._size = 0
        self._index = f"{directory}/index"
        self._indexes = indexes
        self._held = b""
        with _what_is_lost():
            with os.fdopen(open_regular(self._index), "rb", buffering=0) as stream:
                count = count_rows(os.fstat(stream.fileno()).st_size)
                head = stream.read(_HELD_BYTES)
            self._size = file_size(self.data) or 0
            if count and head.startswith(MAGIC):
                self.rows = count
                self._held = head if len(head) < _HELD_BYTES else b""

    def find(self, digest: bytes) -> Optional[Row]:
        """A content that is here with all its bytes."""
        with _what_is_lost():
            row = find_row(self._read, self.rows, digest)
            return row if row is not None and row.offset + row.length <= self._size else None
        return None

    def tops(self, ordinal: int) -> Iterator[int]:
        """The beginnings of its digests, in order, each with a number that stands for this pack."""
        with _what_is_lost():
            for first in range(0, self.rows, _ROWS_AT_ONCE):
                length = min(_ROWS_AT_ONCE, self.rows - first) * ROW.size
                rows = self._read(length, len(MAGIC) + first * ROW.size)
                for digest, _, _ in ROW.iter_unpack(rows):
                    yield _top(digest) | ordinal

    def _read(self, length: int, offset: int) -> bytes:
        if self._held:
            return self._held[offset : offset + length]
        return self._indexes.read(self._index, length, offset)


class _Map:
    """Which packs may have a content, by the first five bytes of its digest."""

    def __init__(self, packs: Iterable[_Pack]) -> None:
        self._packs = [one for one in packs if one.rows]
        tops = heapq.merge(*(one.tops(number) for number, one in enumerate(self._packs)))
        # All of it at once: one that grew to its size would leave holes in memory, each time.
        self._tops = array("Q", [0]) * sum(one.rows for one in self._packs)
        count = 0
        while some := array("Q", islice(tops, _ROWS_AT_ONCE)):
            self._tops[count : count + len(some)] = some
            count += len(some)
        del self._tops[count:]  # a pack has gone

    def find(self, digest: bytes) -> Iterator[_Pack]:
        top = _top(digest)
        at = bisect_left(self._tops, top)
        while at < len(self._tops) and self._tops[at] <= top | _ORDINALS:
            yield self._packs[self._tops[at] & _ORDINALS]
            at += 1


def _names(directory: Path) -> List[str]:
    """The names of packs there, sorted; a link is none."""
    found = entries(directory.parent, directory)
    return sorted(one.name for one in found if one.is_dir(follow_symlinks=False))


def _top(digest: bytes) -> int:
    return int.from_bytes(digest[:5], "big") << 24


@contextlib.contextmanager
def _what_is_lost() -> Iterator[None]:
    """What has gone meanwhile, or can't be read, is not there."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LOST:
            raise
