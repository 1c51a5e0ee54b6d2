"""A log's bytes as lines, however they are cut."""

from __future__ import annotations

import pytest

from trainctl.operations.logs import LogLine, _Reader


def texts(data: bytes, size: int) -> list[str]:
    """The lines of data that arrive in pieces of one size."""
    reader = _Reader(0)
    found: list[LogLine] = []
    for start in range(0, len(data), size):
        found += reader.take(data[start : start + size])
    assert reader.offset == len(data)
    return [line.text for line in (*found, *reader.end())]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_pieces_are_put_together(size: int) -> None:
    """Lines are whole, and so are characters that a cut went through."""
    assert texts("one\nzwölf\n\n→ three\n".encode(), size) == ["one", "zwölf", "", "→ three"]


def test_the_last_line_needs_no_end() -> None:
    """It is handed out once, when nothing more is to come."""
    reader = _Reader(2)
    assert list(reader.take(b"whole\npart")) == [LogLine(2, "whole")]
    assert list(reader.end()) == [LogLine(2, "part")]
    assert list(reader.end()) == []


def test_line_ends_of_other_systems_are_no_text() -> None:
    """With or without a newline after them; a return within a line stays the job's."""
    assert texts(b"a\r\nb\rc\r\nd\r", 100) == ["a", "b\rc", "d"]


def test_what_is_no_text_is_shown_as_such() -> None:
    """A job may write any bytes."""
    assert texts(b"\xff\xfe\n", 1) == ["\ufffd\ufffd"]
