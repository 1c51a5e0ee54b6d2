"""Differences as rows: what is shown, what is hidden."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainctl.views.plan.changes import PageStyle, brief, row_lines
from trainctl.views.plan.rows import added_rows, changed_rows, format_path
from trainctl.views.terminal.text import plain

PAGE = PageStyle(80, plain)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_null_and_empty_are_not_shown_of_new_things() -> None:
    """Of a creation only what says something is shown; zero and false say something."""
    rows = added_rows({"a": None, "b": {}, "c": [], "d": "", "e": 0, "f": False, "g": {"h": 1}})

    assert [(row.name, row.after) for row in rows] == [("e", 0), ("f", False), ("g.h", 1)]


def test_an_insertion_is_one_row() -> None:
    """A value put into a list is shown alone, not as a shift of all that follow."""
    rows = list(changed_rows({"a": ["x", "y"]}, {"a": ["x", "new", "y"]}))

    assert [(row.symbol, row.name, row.after) for row in rows] == [("+", "a[1]", "new")]


def test_lists_that_differ_only_in_how_often_are_shown_whole() -> None:
    """A repeated value that was dropped is still a visible difference."""
    rows = list(changed_rows(["x", "x"], ["x"]))

    assert [(row.symbol, row.before, row.after) for row in rows] == [("~", ["x", "x"], ["x"])]


def spoken(value: object) -> object:
    """The value without its nulls in mappings: absent means null."""
    if isinstance(value, dict):
        return {key: spoken(one) for key, one in value.items() if one is not None}
    return [spoken(one) for one in value] if isinstance(value, list) else value


@given(VALUES, VALUES)
def test_every_difference_is_shown(before: object, after: object) -> None:
    """Values that differ have at least one row, equal ones have none: nothing forces a change unseen."""
    rows = list(changed_rows({"a": before}, {"a": after}))

    if before == after:
        assert rows == []
    elif spoken(before) != spoken(after):
        assert rows


def test_paths_are_written_as_people_write_them() -> None:
    """Indices in brackets, odd keys quoted."""
    assert format_path(("weights", 0, "source")) == "weights[0].source"
    assert format_path(("pins", "weights.a")) == 'pins["weights.a"]'


def test_values_line_up_and_reasons_stand_behind() -> None:
    """Names are padded, a forced path is marked; what is unknown says so once, with what it was."""
    rows = list(changed_rows({"a": 1, "long_name": "x"}, {"a": 2, "long_name": None}))

    unknown = {"listing": None, "bytes": 2000}
    assert row_lines(rows, PAGE, [("a",)], unknown) == [
        "      ~ a         = 1 -> 2  # forces replacement",
        '      - long_name = "x" -> null',
        "      ~ listing   = (known after apply)",
        "      ~ bytes     = 2.0 kB -> (known after apply)",
    ]


def test_long_values_stand_below_each_other() -> None:
    """What doesn't fit side by side is stacked."""
    rows = list(changed_rows({"a": "x" * 50}, {"a": "y" * 50}))

    assert row_lines(rows, PAGE) == [
        "      ~ a:",
        f'          - "{"x" * 50}"',
        f'          + "{"y" * 50}"',
    ]


def test_digests_and_commits_are_cut_short() -> None:
    """Nobody reads sixty-four digits; what is not a digest is shown whole."""
    assert brief("sha256:" + "a" * 64) == "sha256:" + "a" * 12
    assert brief("b" * 40) == "b" * 12
    assert brief("b" * 41) == '"' + "b" * 41 + '"'
