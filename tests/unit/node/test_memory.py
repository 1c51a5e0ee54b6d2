"""How much memory a node takes for each of very many files: some bytes."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable

import pytest

from trainctl.node.content import packed
from trainctl.node.content.listing import File, Listing
from trainctl.node.content.packed import packed as packed_rows
from trainctl.node.content.parts import to_hex
from trainctl.node.transfer.owners import Owners

FEW = 3_000
MANY = 4 * FEW
MOST = 40
"""Bytes a file: an object for each takes some hundreds."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of a thousand files is a long one."""
    monkeypatch.setattr(packed, "AS_TUPLE", 1_000)


def data_of(number: int) -> bytes:
    """A content of its own for each number."""
    return b"%d" % number


def listing_of(first: int, count: int) -> Listing:
    """So many small files, in directories of some hundreds."""
    files = (
        File(f"{one // 500:04}/{one:08}", len(data_of(one)), _name(data_of(one)), ())
        for one in range(first, first + count)
    )
    return Listing(packed_rows(files, tuple, File))


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def peak_of(do: Callable[[], object]) -> int:
    """How many bytes more than before were in memory at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        do()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_peers_share_out_very_many_files() -> None:
    """Who is asked for each of them first is a small number, and what each node has is a bit."""

    def peak(count: int) -> int:
        listing = listing_of(0, count)
        holds = {node: to_hex(one % 4 == 0 for one in range(count)) for node in ("a", "b", "c")}
        return peak_of(lambda: Owners(listing, "b", holds).line(count - 1))

    peak(FEW)  # what is made once

    assert peak(MANY) - peak(FEW) < MOST * (MANY - FEW)
