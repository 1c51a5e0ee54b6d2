"""Contents in packs, found by their digests and read: by a directory's reader, and through a server."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.blob_server import reached
from tests.support.peers import TOKEN
from trainctl.base.failure import Failure
from trainctl.node.content.pack_index import (
    Row,
    count_rows,
    find_row,
    index_bytes,
    is_right,
    rows_of,
)
from trainctl.node.content.packs import Packs
from trainctl.node.content.runs import Place, read_runs
from trainctl.node.transfer.blob_client import BlobClient
from trainctl.node.transfer.origin import DirectoryOrigin
from trainctl.node.transfer.server import BlobServer, serving
from trainctl.node.transfer.shelf import MirrorShelf


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def add_pack(root: Path, contents: Sequence[bytes]) -> Path:
    """A pack of these contents, in their order."""
    pack = root / "packs" / secrets.token_hex(4)
    pack.mkdir(parents=True)
    rows, offset = [], 0
    for data in contents:
        rows.append(Row(hashlib.sha256(data).digest(), offset, len(data)))
        offset += len(data)
    (pack / "data").write_bytes(b"".join(contents))
    (pack / "index").write_bytes(index_bytes(rows))
    return pack


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"content %d" % number for number in range(start, start + count)]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 1000, 20_000])
def test_every_row_is_found_and_no_other(count: int) -> None:
    """In an index of any size, by reading a part of it."""
    rows = [Row(hashlib.sha256(data).digest(), n, 1) for n, data in enumerate(numbered(count))]
    data = index_bytes(rows)
    read = []

    def reading(length: int, offset: int) -> bytes:
        read.append(length)
        return data[offset : offset + length]

    assert is_right(data)
    assert count_rows(len(data)) == count
    assert sorted(rows_of(data)) == sorted(rows)
    some = rows[:: max(1, count // 500)]
    assert [find_row(reading, count, row.digest) for row in some] == some
    strange = [hashlib.sha256(b"%d" % number).digest() for number in range(200)]
    assert [find_row(reading, count, one) for one in strange] == [None] * 200
    assert count < 20_000 or sum(read) / len(read) < len(data) / 20


def test_rows_that_are_not_spread_evenly_are_found() -> None:
    """Digests that all begin alike cost more reading, and are found."""
    rows = [Row(bytes(28) + number.to_bytes(4, "big"), number, 1) for number in range(5000)]
    data = index_bytes(rows)

    def read(length: int, offset: int) -> bytes:
        return data[offset : offset + length]

    assert [find_row(read, 5000, row.digest) for row in rows] == rows
    assert find_row(read, 5000, b"\xff" * 32) is None


@pytest.mark.parametrize("at", [0, 8, 40, 47, 48, -1])
def test_an_index_with_a_wrong_bit_is_not_right(at: int) -> None:
    """Wherever that is: in its first line, a digest, a place or its own digest."""
    data = bytearray(index_bytes([Row(hashlib.sha256(b"x").digest(), 0, 1)]))
    data[at] ^= 1
    assert not is_right(bytes(data))


def test_contents_are_found_in_many_packs(tmp_path: Path) -> None:
    """Of 40 packs, whether they are asked for in order, at random or in vain, before and after many were."""
    packs = {add_pack(tmp_path, numbered(50, 50 * n)): numbered(50, 50 * n) for n in range(40)}
    there = {sha256(data): (pack, data) for pack, some in packs.items() for data in some}
    asked = [*there, *random.Random(1).sample(sorted(there), 1000)]
    known = Packs(tmp_path / "packs")

    for digest in asked:
        pack, data = there[digest]
        place = known.find(digest)
        assert place is not None
        assert place.path == str(pack / "data")
        with (pack / "data").open("rb") as stream:
            stream.seek(place.offset)
            assert stream.read(place.length) == data
        assert known.find(sha256(b"not " + data)) is None


def test_packs_that_come_and_go_are_seen_when_looked_for(tmp_path: Path) -> None:
    """Whether or not many contents were asked for meanwhile."""
    first = add_pack(tmp_path, numbered(10))
    known = Packs(tmp_path / "packs")
    assert [known.find(sha256(b"%d" % number)) for number in range(2000)] == [None] * 2000
    add_pack(tmp_path, numbered(10, 10))
    for path in first.iterdir():
        path.unlink()
    first.rmdir()

    before = known.find(sha256(b"content 11"))
    known.refresh()

    assert before is None
    assert known.find(sha256(b"content 11")) is not None
    assert known.find(sha256(b"content 1")) is None


@pytest.mark.parametrize("damage", ["no index", "no data", "cut index", "another form"])
def test_a_pack_that_is_damaged_holds_nothing(tmp_path: Path, damage: str) -> None:
    """And is no error for those that ask."""
    pack = add_pack(tmp_path, numbered(300))
    index = (pack / "index").read_bytes()
    if damage == "cut index":
        (pack / "index").write_bytes(index[:-50])
    elif damage == "another form":
        (pack / "index").write_bytes(b"tctlpk9\n" + index[8:])
    else:
        (pack / damage.split()[1]).unlink()
    known = Packs(tmp_path / "packs")
    assert [known.find(sha256(data)) for data in numbered(300)] == [None] * 300


def test_a_pack_that_is_cut_off_holds_what_is_left(tmp_path: Path) -> None:
    """What ends behind its end is not there."""
    pack = add_pack(tmp_path, [b"first", b"second", b""])
    (pack / "data").write_bytes(b"firstsec")
    known = Packs(tmp_path / "packs")
    assert known.find(sha256(b"first")) is not None
    assert known.find(sha256(b"second")) is None


def test_neighbours_are_read_at_once_and_others_alone(tmp_path: Path) -> None:
    """Whatever their order is: contents come as they were asked for, empty ones and those far apart among them."""
    path = tmp_path / "data"
    data = random.Random(2).randbytes(5 * 2**20)
    path.write_bytes(data)
    spans = [(0, 10), (20, 30), (10, 20), (30, 30), (4 * 2**20, 5 * 2**20), (40, 50), (5, 9)]
    with path.open("rb") as stream:
        places = [Place(stream.fileno(), *span) for span in spans]
        assert [bytes(one) for one in read_runs(places)] == [data[a:b] for a, b in spans]
        with pytest.raises(OSError, match="cut off"):
            list(read_runs([Place(stream.fileno(), 5 * 2**20 - 1, 5 * 2**20 + 1)]))


def test_a_server_hands_out_slices(tmp_path: Path) -> None:
    """In one pack of the protocol, contents of two packs, one alone and one that isn't there; one of them also by range."""
    near, far, alone = numbered(100), numbered(100, 100), b"loose"
    add_pack(tmp_path, near)
    add_pack(tmp_path, [*far, b""])
    blob = tmp_path / "blobs" / "sha256" / sha256(alone)[:2] / sha256(alone)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(alone)
    wanted = [*near[5:50], alone, *far[:5], b"", *reversed(near[50:])]
    with serving(BlobServer(MirrorShelf(tmp_path), TOKEN)) as server:
        client = BlobClient(reached(server))
        found = client.pack([*map(sha256, wanted), "0" * 64])
        part = bytearray(4)
        counts = list(client.read(sha256(near[7]), 3, memoryview(part)))
        with pytest.raises(Failure, match="does not have"):
            list(client.read(sha256(near[7]), len(near[7]), memoryview(part)))
        client.close()

    assert {digest: bytes(data) for digest, data in found.contents.items()} == {
        sha256(data): data for data in wanted
    }
    assert (counts, bytes(part)) == ([4], near[7][3:7])


def test_a_server_finds_what_moved_to_another_pack(tmp_path: Path) -> None:
    """A pack that goes when its contents lie in a new one costs a second look."""
    old = add_pack(tmp_path, numbered(10))
    shelf = MirrorShelf(tmp_path)
    first = shelf.open(sha256(b"content 3"), 0, None)
    add_pack(tmp_path, numbered(5))
    for path in (old / "index", old / "data"):
        path.unlink()
    old.rmdir()

    second = shelf.open(sha256(b"content 4"), 0, None)

    assert first is not None
    assert second is not None
    with first.stream, second.stream:
        for opened, data in ((first, b"content 3"), (second, b"content 4")):
            place = Place(opened.stream.fileno(), opened.start, opened.end)
            assert [bytes(one) for one in read_runs([place])] == [data]
    assert shelf.open(sha256(b"content 7"), 0, None) is None


def test_a_directory_is_read_by_slices(tmp_path: Path) -> None:
    """Many at once and one alone; what is not there, or shorter than the listing says, is said."""
    add_pack(tmp_path, [*numbered(300), b""])
    origin = DirectoryOrigin(str(tmp_path))
    sizes = {sha256(data): len(data) for data in [*numbered(200), b""]}

    found = origin.read_small(sizes)
    one = bytearray(len(b"content 9"))
    origin.read(sha256(b"content 9"), 0, memoryview(one), lambda piece: None)

    assert {digest: bytes(data) for digest, data in found.items()} == {
        sha256(data): data for data in [*numbered(200), b""]
    }
    assert bytes(one) == b"content 9"
    with pytest.raises(Failure, match="does not hold"):
        origin.read_small({"0" * 64: 5})
    with pytest.raises(Failure, match="ends at 9 bytes"):
        origin.read_small({sha256(b"content 9"): 10})
    with pytest.raises(Failure, match="ends at 9 bytes"):
        origin.read(sha256(b"content 9"), 0, memoryview(bytearray(10)), lambda piece: None)
    origin.close()
