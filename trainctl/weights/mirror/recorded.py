"""Contents by fingerprint in a temporary file that nobody else sees: memory doesn't grow with them, and one is found by one read.

A table of slots, twice as many as there are rows: a row lies in the slot that its fingerprint names, or in the next that was free.
No database does it, as the Python of a host may have none.
"""

from __future__ import annotations

import os
import struct
from typing import Iterable, Iterator, Tuple

from trainctl.base.temporary import named_if_full, temporary_file
from trainctl.weights.mirror.layout import Content

_ROW = struct.Struct(">32s32sQ")
_KEY_BYTES = 32
_FREE = bytes(_KEY_BYTES)
_READ_BYTES = 4 * _ROW.size
"""As much as one look takes in most cases."""

Row = Tuple[str, str, int]
"""Fingerprint, sha256 and size."""


class Recorded:
    """Takes rows, about ``count`` of them (more only make it slow), of which the last of a fingerprint holds; then it is asked, from any thread."""

    def __init__(self, rows: Iterable[Row], count: int) -> None:
        self._slots = 2 * count + 1
        file = temporary_file(self)
        self._file = file.fileno()
        for key, sha256, size in rows:
            digest = bytes.fromhex(key)
            place, _ = self._look(digest)
            with named_if_full():
                os.pwrite(self._file, _ROW.pack(digest, bytes.fromhex(sha256), size), place)

    def find(self, keys: Iterable[str]) -> Iterator[tuple[str, Content]]:
        """Those of the fingerprints that are in it, with their contents."""
        for key in keys:
            _, row = self._look(bytes.fromhex(key))
            if row:
                _, sha256, size = _ROW.unpack(row)
                yield key, Content(sha256.hex(), size)

    def _look(self, digest: bytes) -> tuple[int, bytes]:
        """Where in the file the row of a fingerprint is, and the row; where it would be, and none."""
        place = (int.from_bytes(digest[:8], "big") * self._slots >> 64) * _ROW.size
        while True:
            rows = os.pread(self._file, _READ_BYTES, place)
            for start in range(0, _READ_BYTES, _ROW.size):
                row = rows[start : start + _ROW.size]
                if row[:_KEY_BYTES] == digest:
                    return place + start, row
                if row[:_KEY_BYTES] in (_FREE, b""):  # behind the end nothing has been written
                    return place + start, b""
            place += _READ_BYTES
