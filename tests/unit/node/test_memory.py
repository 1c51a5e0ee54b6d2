"""How much memory a node takes for each of very many files: some bytes."""

from __future__ import annotations

import hashlib
import io
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from trainctl.node.cache.leases import Leases
from trainctl.node.cache.references import References
from trainctl.node.cache.reservations import reserved
from trainctl.node.cache.room import make_room
from trainctl.node.cache.trees import Trees
from trainctl.node.cache.verify import cache_verify
from trainctl.node.content import packed
from trainctl.node.content.blobs import stamp
from trainctl.node.content.listing import File, Listing
from trainctl.node.content.packed import packed as packed_rows
from trainctl.node.content.parts import to_hex
from trainctl.node.system import numbers
from trainctl.node.system.failure import Failure
from trainctl.node.system.files import remove_tree
from trainctl.node.system.layout import Layout
from trainctl.node.transfer.owners import Owners

FEW = 1_500
MANY = 4 * FEW
MOST = 40
"""Bytes a file: an object for each takes some hundreds."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of some hundred files is a long one."""
    monkeypatch.setattr(packed, "AS_TUPLE", 500)
    monkeypatch.setattr(numbers, "_SHELVES", 16)


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


def cache_of(place: Path, listing: Listing) -> Layout:
    """A cache that holds the listing, for one lineage."""
    layout = Layout(str(place))
    for file in listing.contents:
        blob = layout.blob(file.sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data_of(int(Path(file.path).name)))
        blob.chmod(0o444)
        os.utime(blob, (stamp(file.sha256), stamp(file.sha256)))
    for directory in (layout.partial, layout.locks, layout.trees, layout.seals):
        directory.mkdir()
    Trees(layout).build(listing, "file:./x")
    References(layout).refer("one", listing, "somebody")
    return layout


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


def test_very_many_files_are_verified(tmp_path: Path) -> None:
    """What is known to be right of them, and what is still to be looked at."""

    def peak(count: int) -> int:
        place = tmp_path / str(count)
        cache_of(place, listing_of(0, count))

        def verify() -> None:
            said = cache_verify({"root": str(place)}, lambda event: None, io.BytesIO())
            assert [(row["outcome"], row["files"]) for row in said["listings"]] == [
                ("whole", count)
            ]

        return peak_of(verify)

    peak(10)

    assert peak(MANY) - peak(FEW) < MOST * (MANY - FEW)


def test_very_many_files_make_room_for_as_many(tmp_path: Path) -> None:
    """Nothing goes as long as a live run needs it, and everything when it must; both are looked through."""

    def peak(count: int) -> int:
        here, coming = listing_of(0, count), listing_of(10**7, count)
        layout = cache_of(tmp_path / str(count), here)

        def make() -> None:
            with reserved(layout, coming):
                Leases(layout).take("run", here.id, "one")
                with pytest.raises(Failure, match="no space left"):
                    make_room(layout, coming, coming.size)
                Leases(layout).release("run")
                make_room(layout, coming, coming.size)
            assert not any(layout.blobs.glob("*/*"))

        return peak_of(make)

    peak(10)

    assert peak(MANY) - peak(FEW) < MOST * (MANY - FEW)


def test_a_directory_of_very_many_files_is_removed(tmp_path: Path) -> None:
    """Its names are read and removed one by one."""

    def peak(count: int) -> int:
        for number in range(count):
            (tmp_path / "flat").mkdir(exist_ok=True)
            (tmp_path / "flat" / f"{number:08}").touch()
        return peak_of(lambda: remove_tree(tmp_path / "flat"))

    peak(10)

    assert peak(MANY) - peak(FEW) < MOST * (MANY - FEW)
