"""Sets of very many contents, exact and on the disk."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby

from trainctl.base.packed import packed_sorted
from trainctl.base.temporary import named_if_full, temporary_file

_DIGEST_BYTES = 32
_IN_A_BLOCK = 64
_BLOCK_BYTES = _IN_A_BLOCK * _DIGEST_BYTES


def digest(name: str) -> bytes:
    """A content's name in half its size; what is no digest is as it is, and in no set."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return name.encode()


class DiskSet:
    """Digests in a temporary file that nobody else sees, sorted; memory has 8 bytes of one in 64. It never changes, and is safe for many threads."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._file = temporary_file(self)
        self._tops = array("Q")
        right = (one for one in digests if len(one) == _DIGEST_BYTES)
        once = groupby(packed_sorted(right, lambda one: (one,), bytes))
        for number, (one, _) in enumerate(once):
            if number % _IN_A_BLOCK == 0:
                self._tops.append(_top(one))
            with named_if_full():
                self._file.write(one)
        with named_if_full():
            self._file.flush()

    def __contains__(self, wanted: bytes) -> bool:
        if len(wanted) != _DIGEST_BYTES:
            return False
        # In the last block that begins before it, or in those that begin alike.
        top = _top(wanted)
        first = max(0, bisect_left(self._tops, top) - 1)
        blocks = max(1, bisect_right(self._tops, top) - first)
        data = os.pread(self._file.fileno(), blocks * _BLOCK_BYTES, first * _BLOCK_BYTES)
        at = data.find(wanted)
        while at % _DIGEST_BYTES and at >= 0:
            at = data.find(wanted, at + 1)
        return at >= 0

    def __iter__(self) -> Iterator[bytes]:
        """All of them, in order."""
        for number in range(len(self._tops)):
            data = os.pread(self._file.fileno(), _BLOCK_BYTES, number * _BLOCK_BYTES)
            yield from (data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES))


def _top(one: bytes) -> int:
    return int.from_bytes(one[:8], "big")
