"""Listings as a node reads them: in a request, after it, and out of what is stored."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainctl.base import listing as model
from trainctl.base import packed
from trainctl.base.failure import Failure
from trainctl.base.packed import AS_TUPLE, Packed
from trainctl.base.protocol.rows import received, sent
from trainctl.node.content.listing import CHUNK_BYTES, given, parse, read_stored
from trainctl.node.content.stored import read_about, write_stored

Row = tuple[str, int, str, tuple[str, ...]]


def name(number: int) -> str:
    """A digest."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def rows(count: int, contents: int = 10**9) -> Iterator[Row]:
    """So many small files, of at most so many contents."""
    return ((f"d/{number:08}", 10, name(number % contents), ()) for number in range(count))


def following(*lists: Iterator[Row] | Sequence[Row]) -> io.BytesIO:
    """What follows a request."""
    return io.BytesIO(b"".join(sent(lists)))


def test_lists_follow_one_another() -> None:
    """Long ones, short ones and empty ones; what comes after them is left where it is."""
    stream = following(list(rows(2500)), [], list(rows(1)))
    stream = io.BytesIO(stream.getvalue() + b"more\n")

    found = [[tuple(row) for row in one] for one in received(stream)]

    assert [len(one) for one in found] == [2500, 0, 1]
    assert found[0][-1][:3] == list(rows(2500))[-1][:3]
    assert stream.read() == b"more\n"


@pytest.mark.parametrize("cut", [b"", b'{"of": 0, "rows": [[', b"[]\n", b"1\n"])
def test_what_is_cut_off_is_an_error(cut: bytes) -> None:
    """Nobody takes half a list for a whole one."""
    data = b"".join(sent([rows(10)])).removesuffix(b"null\n") + cut

    with pytest.raises(Failure, match="cut off"):
        given([None], io.BytesIO(data))


def test_a_listing_is_the_same_however_it_comes(tmp_path: Path) -> None:
    """Its id is that of the operator's, from a document, from rows, and read again from what was stored."""
    chunks = tuple(name(-number) for number in range(3))
    many = [*rows(AS_TUPLE + 5), ("ä/\u2028", 2 * CHUNK_BYTES + 1, name(-9), chunks)]
    theirs = model.Listing(tuple(model.ListedFile(*row) for row in many))

    (followed,) = given([None], following(many))
    document = parse(json.loads(theirs.to_bytes()))
    write_stored(tmp_path / "seal", {"source": '"document": {', "files": 3}, followed)

    assert isinstance(followed.files, Packed)
    assert theirs.id == followed.id == document.id
    assert tuple(followed.files) == document.files
    stored = read_stored(tmp_path / "seal")
    assert stored is not None
    assert stored.id == theirs.id
    assert json.loads((tmp_path / "seal").read_bytes())["document"] == json.loads(theirs.to_bytes())
    assert read_about(tmp_path / "seal") == {
        "source": '"document": {', "files": 3, "document": None,
    }  # fmt: skip


def test_what_earlier_programs_stored_is_read(tmp_path: Path) -> None:
    """They wrote keys in order, with spaces, and the document among them."""
    document = json.loads(model.Listing((model.ListedFile("a", 1, name(1)),)).to_bytes())
    seal = {"bytes": 1, "document": document, "files": 1, "listing": "x", "source": "hf://a/b"}
    (tmp_path / "seal").write_text(json.dumps(seal, sort_keys=True) + "\n")
    (tmp_path / "other").write_text("{}")

    stored = read_stored(tmp_path / "seal")

    assert stored is not None
    assert [file.path for file in stored.files] == ["a"]
    assert read_about(tmp_path / "seal") == {**seal, "document": None}
    for absent in ("other", "none"):
        assert read_stored(tmp_path / absent) is None
        assert read_about(tmp_path / absent) is None


def test_one_file_of_each_content() -> None:
    """The first of those that are equal, in the order of the listing, of few files and of many."""
    for count in (100, AS_TUPLE + 100):
        (listing,) = given([None], following(list(rows(count, contents=count // 2))))
        expected = [path for path, *_ in rows(count // 2)]
        assert [file.path for file in listing.contents] == expected


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["a", "a"], "twice"),
        (["b", "a"], "out of order"),
        (["a", "a-b", "a.c/d", "a/x"], "below a file"),
        (["a/b", "a/b/c/d"], "below a file"),
    ],
)
def test_a_tree_that_cant_be_is_refused(paths: list[str], why: str) -> None:
    """Whatever lies between a file and what is said to be below it."""
    with pytest.raises(Failure, match=why):
        given([None], following([(path, 1, name(1), ()) for path in paths]))


def test_names_that_only_begin_like_a_file_are_not_below_it() -> None:
    """A file may share its beginning with other files and directories."""
    paths = ["a", "a-b/c", "a.b", "ab/c", "b"]

    (listing,) = given([None], following([(path, 1, name(1), ()) for path in paths]))

    assert [listing.names(path) for path in (*paths, "a-b", "c", "")] == [True] * 5 + [False] * 3


@pytest.mark.parametrize("row", [["a", 1], {"path": "a"}, ["a", -1, name(1), []]])
def test_a_row_that_is_no_file_is_refused(row: Any) -> None:
    """Its form is checked like that of a document."""
    with pytest.raises(Failure, match="not a file with a size"):
        given([None], following([row]))


def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have some hundred files be many."""
    for what, count in (("AS_TUPLE", 500), ("_RUN", 1000), ("_BLOCK", 64), ("_MOST_RUNS", 3)):
        monkeypatch.setattr(packed, what, count)


def test_many_files_are_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many files take hardly more memory, with one of each content, and stored."""
    little_at_once(monkeypatch)

    def peak(count: int) -> int:
        data = b"".join(sent([rows(count)]))
        (tmp_path / "rows").write_bytes(data)
        tracemalloc.start()
        with (tmp_path / "rows").open("rb") as stream:
            (listing,) = given([None], stream)
        assert sum(1 for _ in listing.contents) == count
        write_stored(tmp_path / "seal", {}, listing)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(10_000) < 1.25 * peak(5_000)


def test_one_of_each_content_takes_a_bit_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a packed sequence of them takes: less than half of the eight bytes a file of an earlier way."""
    little_at_once(monkeypatch)

    def peak(count: int) -> int:
        (listing,) = given([None], following(list(rows(count, contents=count // 2))))
        tracemalloc.start()
        assert sum(1 for _ in listing.contents) == count // 2
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2_000)  # what is loaded once
    assert peak(24_000) - peak(6_000) < 4 * 18_000
