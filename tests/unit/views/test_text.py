"""Text of others does nothing to a terminal."""

from __future__ import annotations

import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trainctl.views.terminal.text import (
    INVISIBLE,
    csv_text,
    display_width,
    escape,
    escape_lines,
    literal,
    shorten,
    table,
)


@given(st.text())
def test_escaped_text_neither_acts_nor_hides(text: str) -> None:
    shown = escape(text)
    assert not [line for line in shown if unicodedata.category(line) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(shown) & set("\u200b\u200e\u200f\u202a\u202e\u2066\u2069\ufeff\u061c")


def test_escapes_name_their_character() -> None:
    assert escape("a\x1b[31mb\nc\td\u202e") == "a\\u001b[31mb\\nc\\td\\u202e"
    assert escape("naïve 模型 🤗") == "naïve 模型 🤗"
    assert escape("\U000e0041") == "\\U000e0041"
    assert escape_lines("a\r\n\x07b") == ["a", "\\u0007b"]
    assert literal({"a": [1, None, True]}) == '{"a": [1, null, true]}'
    printable = "".join(filter(str.isprintable, map(chr, range(sys.maxunicode + 1))))
    assert INVISIBLE.search(printable) is None
    assert escape(printable) is printable


@given(st.text(), st.integers(min_value=10, max_value=40))
def test_shortened_text_fits(text: str, most: int) -> None:
    assert display_width(shorten(text, most)) <= most


def test_tables_line_up_and_shrink_to_their_width() -> None:
    """Columns without values are left out; the widest cells are shortened, unless their rows break anyway."""
    wide = table(["NAME", "N"], [["模型", "1"], ["abc", "22"]], right=frozenset({"N"}))
    assert wide == ["NAME   N", "模型   1", "abc   22"]
    assert table(["A", "B", "C"], [["1", "", "3"], ["2", "", ""]]) == ["A  C", "1  3", "2"]
    assert table(["A", "B"], []) == ["A  B"]
    assert table(["A", "B"], [["a" * 40, "short"]], width=30)[1] == "aaaaaaaaaaa…aaaaaaaaaaa  short"

    rows = [["a" * 40, "b" * 40]]
    whole = table(["A", "B"], rows)
    assert whole[1] == "a" * 40 + "  " + "b" * 40
    assert table(["A", "B"], rows, width=21) == whole
    assert table(["A", "B"], rows, width=40, shrinks=frozenset({"A"})) == whole
    assert table(["A", "B"], rows, width=40, shrinks=frozenset("AB"), narrowest={"A": 30}) == whole
    fitted = table(["A", "B"], rows, width=42, shrinks=frozenset("AB"), narrowest={"A": 30})
    assert display_width(fitted[1]) == 42


def test_a_line_end_in_a_cell_is_quoted() -> None:
    rows = [{"a": "1\r2"}, {"a": "1\n2"}]
    assert csv_text(["a"], rows) == 'a\n"1\r2"\n"1\n2"\n'
