"""The index of a pack, as bytes: where in the pack each content lies, found by its digest without reading all of it.

MAGIC, then for each content a row: sha256 (32 bytes), offset and length in the pack (4 bytes each, big endian),
sorted by digest; at last the sha256 of all that
"""

from __future__ import annotations

import hashlib
import struct
from typing import Callable, Iterable, Iterator, NamedTuple, Optional

MAGIC = b"tctlpk1\n"
ROW = struct.Struct(">32sII")
_SEAL_BYTES = hashlib.sha256().digest_size
_LEAST_REACH = 32

Read = Callable[[int, int], bytes]
"""So many bytes of an index, from an offset on: ``read(length, offset)``."""


class Row(NamedTuple):
    """A content in a pack, by its digest; offset and length in bytes."""

    digest: bytes
    offset: int
    length: int


def index_bytes(rows: Iterable[Row]) -> bytes:
    """The index of these contents."""
    body = MAGIC + b"".join(sorted(ROW.pack(*row) for row in rows))
    return body + hashlib.sha256(body).digest()


def is_right(data: bytes) -> bool:
    """Whether an index is, bit for bit, one that was written."""
    body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    return body.startswith(MAGIC) and hashlib.sha256(body).digest() == seal


def count_rows(size: int) -> Optional[int]:
    """How many rows an index of so many bytes has; None for what can be none."""
    count, rest = divmod(size - len(MAGIC) - _SEAL_BYTES, ROW.size)
    return count if count >= 0 and not rest else None


def rows_of(data: bytes) -> Iterator[Row]:
    """The rows of an index; of one that is damaged, those that it can hold."""
    count = max(0, (len(data) - len(MAGIC) - _SEAL_BYTES) // ROW.size)
    body = memoryview(data)[len(MAGIC) : len(MAGIC) + count * ROW.size]
    return (Row(*row) for row in ROW.iter_unpack(body))


def find_row(read: Read, count: int, digest: bytes) -> Optional[Row]:
    """The row of a digest among ``count``, read around where it should be: digests are spread evenly, to half the root of ``count``."""
    at = int.from_bytes(digest[:8], "big") * count >> 64
    reach = _LEAST_REACH + int(count**0.5)
    while True:
        first, end = max(0, at - reach), min(count, at + reach)
        rows = read((end - first) * ROW.size, len(MAGIC) + first * ROW.size)
        low = first == 0 or rows[: len(digest)] <= digest
        high = end == count or digest <= rows[-ROW.size :][: len(digest)]
        if low and high:
            return _row_in(rows, digest)
        reach *= 4


def _row_in(rows: bytes, digest: bytes) -> Optional[Row]:
    low, high = 0, len(rows) // ROW.size
    while low < high:
        middle = (low + high) // 2
        at = middle * ROW.size
        if rows[at : at + len(digest)] < digest:
            low = middle + 1
        else:
            high = middle
    at = low * ROW.size
    found = rows[at : at + len(digest)] == digest and at + ROW.size <= len(rows)
    return Row(*ROW.unpack_from(rows, at)) if found else None
