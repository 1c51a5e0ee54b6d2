"""Text that isn't ours does nothing to a terminal."""

from __future__ import annotations

import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import (
    INVISIBLE,
    display_width,
    escape,
    escape_lines,
    literal,
    shorten,
)


@given(st.text())
def test_nothing_that_acts_or_hides_gets_through(text: str) -> None:
    """No control, no format character and no line end is left, whatever came in."""
    shown = escape(text)

    assert not [one for one in shown if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(shown) & set("\u200b\u200e\u200f\u202a\u202e\u2066\u2069\ufeff\u061c")


def test_what_was_there_can_be_read() -> None:
    """Escapes say which character was there."""
    assert escape("a\x1b[31mb\nc\td\u202e") == "a\\u001b[31mb\\nc\\td\\u202e"
    assert escape("naïve 模型 🤗") == "naïve 模型 🤗"
    assert escape("\U000e0041") == "\\U000e0041"


def test_lines_stay_lines() -> None:
    """A text keeps its lines, and each is escaped."""
    assert escape_lines("a\r\n\x07b") == ["a", "\\u0007b"]


def test_literals_are_json() -> None:
    """A value is shown as JSON writes it."""
    assert literal({"a": [1, None, True]}) == '{"a": [1, null, true]}'


@given(st.text(), st.integers(min_value=10, max_value=40))
def test_shortened_text_fits(text: str, most: int) -> None:
    """A shortened text takes no more columns than it may."""
    assert display_width(shorten(text, most)) <= most


def test_tables_line_up_whatever_the_script() -> None:
    """Columns start at the same place also after characters that are two columns wide."""
    lines = table(["NAME", "N"], [["模型", "1"], ["abc", "22"]], right=frozenset({"N"}))

    assert lines == ["NAME   N", "模型   1", "abc   22"]


def test_a_table_shrinks_to_the_width_it_is_given() -> None:
    """The widest cells give way, with an ellipsis in their middle; without a width nothing is cut."""
    rows = [["a" * 40, "short"]]

    assert table(["A", "B"], rows, width=30)[1] == "aaaaaaaaaaa…aaaaaaaaaaa  short"
    assert table(["A", "B"], rows)[1] == "a" * 40 + "  short"


def test_a_table_that_can_not_fit_is_not_cut() -> None:
    """Where the narrowest cells would be broken into two lines all the same, nothing is lost."""
    rows = [["a" * 40, "b" * 40]]
    whole = table(["A", "B"], rows)

    assert table(["A", "B"], rows, width=21) == whole
    assert table(["A", "B"], rows, width=40, shrinks=frozenset({"A"})) == whole
    assert table(["A", "B"], rows, width=40, narrowest={"A": 30}) == whole
    assert display_width(table(["A", "B"], rows, width=42, narrowest={"A": 30})[1]) == 42


def test_a_column_that_says_nothing_is_left_out() -> None:
    """In every width; a table without rows keeps its headers."""
    assert table(["A", "B", "C"], [["1", "", "3"], ["2", "", ""]]) == ["A  C", "1  3", "2"]
    assert table(["A", "B"], []) == ["A  B"]


def test_what_python_calls_printable_is_shown_as_it_is() -> None:
    """Of all characters there are: such a text is not looked through."""
    printable = "".join(filter(str.isprintable, map(chr, range(sys.maxunicode + 1))))
    assert INVISIBLE.search(printable) is None
    assert escape(printable) is printable
