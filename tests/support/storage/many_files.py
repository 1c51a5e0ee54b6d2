"""Listings of many small files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from trainctl.base.listing import ListedFile, Listing


def listing_of(first: int, count: int) -> Listing:
    """So many small files, in directories of some hundreds."""
    return Listing(tuple(_files(first, count)))


def _files(first: int, count: int) -> Iterator[ListedFile]:
    for one in range(first, first + count):
        data = _data(one)
        yield ListedFile(
            f"{one // 500:04}/{one:08}", len(data), hashlib.sha256(data).hexdigest(), ()
        )


def _data(number: int) -> bytes:
    """A content of its own for each number."""
    return b"%d" % number
