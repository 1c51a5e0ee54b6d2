"""Listings as a node reads them: after a request, and from its own files; and the references to them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.protocol.wire import decode_rows, encode_rows
from trainctl.errors import NodeError, TrainctlError
from trainctl.node.cache.listings import load_listing, receive_listings

Row = tuple[str, int, str, tuple[str, ...]]


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def rows(count: int, contents: int = 10**9) -> Iterator[Row]:
    return ((f"d/{number:08}", 10, name(number % contents), ()) for number in range(count))


def received(rows: Iterator[Row] | Sequence[Row]) -> Listing:
    """A listing that follows a request."""
    rows = list(rows)
    listing_id = Listing(tuple(ListedFile(*row) for row in rows)).id
    (listing,) = receive_listings([listing_id], following(rows))
    return listing


def following(*lists: Iterator[Row] | Sequence[Row]) -> io.BytesIO:
    return io.BytesIO(b"".join(encode_rows(lists)))


def test_lists_follow_one_another() -> None:
    """Long ones, short ones and empty ones; what comes after them is left where it is."""
    stream = following(list(rows(2500)), [], list(rows(1)))
    stream = io.BytesIO(stream.getvalue() + b"more\n")

    result = [[tuple(row) for row in item] for item in decode_rows(stream)]

    assert [len(item) for item in result] == [2500, 0, 1]
    assert result[0][-1][:3] == list(rows(2500))[-1][:3]
    assert stream.read() == b"more\n"


@pytest.mark.parametrize("cut", [b"", b'{"of": 0, "rows": [[', b"[]\n", b"1\n"])
def test_what_is_cut_off_is_an_error(cut: bytes) -> None:
    data = b"".join(encode_rows([rows(10)])).removesuffix(b"null\n") + cut

    with pytest.raises(TrainctlError, match="cut off"):
        receive_listings([name(0)], io.BytesIO(data))


def test_another_listing_than_was_named_is_an_error() -> None:
    with pytest.raises(TrainctlError, match="the listing's id is"):
        receive_listings([name(0)], following(rows(10)))


def test_a_listing_is_the_same_however_it_comes(tmp_path: Path) -> None:
    """Its id is that of the operator's, from rows, and read again from its file."""
    chunks = tuple(name(-number) for number in range(3))
    first = ('a "],[{ b', 1, name(-8), ())
    many = [first, *rows(1500), ("ä/\u2028", 2 * CHUNK_BYTES + 1, name(-9), chunks)]
    theirs = Listing(tuple(ListedFile(*row) for row in many))
    path = tmp_path / f"{theirs.id}.json"
    path.write_bytes(theirs.to_bytes())

    followed = received(many)

    assert theirs.id == followed.id
    assert theirs == followed == load_listing(path)
    assert [file.row for file in followed.files] == list(theirs.rows())
    assert json.loads(path.read_bytes())["files"][-1]["chunks"] == list(chunks)
    assert load_listing(path.rename(tmp_path / f"{name(0)}.json")) is None
    assert load_listing(tmp_path / "none") is None


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"version": 1}', '{"chunk_bytes": 16777216, "files": [1], "version": 1}']
)
def test_what_is_not_a_listing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a listing|newer|malformed file"):
        Listing.from_bytes(text.encode())


def test_one_file_of_each_content() -> None:
    """The first of equal files, in the order of the listing."""
    listing = received(rows(100, contents=50))
    assert [file.path for file in listing.unique_files] == [path for path, *_ in rows(50)]


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["a", "a"], "is repeated"),
        (["b", "a"], "out of order"),
        (["a", "a-b", "a.c/d", "a/x"], "is a file"),
        (["a/b", "a/b/c/d"], "is a file"),
        *(([path], "not a relative path") for path in ("../x", "/x", "a/../x", "a//x", "", ".")),
        *(([path], "a control character") for path in ("a\nb", "a/\0")),
    ],
)
def test_a_tree_that_cant_be_is_refused(paths: list[str], why: str) -> None:
    with pytest.raises(TrainctlError, match=why) as caught:
        received([(path, 1, name(1), ()) for path in paths])
    assert type(caught.value) is NodeError
