"""Rows of a plan show every difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.views.caches import decimal_size
from trainctl.views.plan.rows import changed_rows, format_path

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def without_nulls(value: object) -> object:
    """The value without nulls of mappings, which mean the same as absent keys."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@given(VALUES, VALUES)
def test_every_difference_is_shown(before: object, after: object) -> None:
    """Values that differ have at least one row, equal ones have none: nothing forces a change unseen."""
    rows = list(changed_rows({"a": before}, {"a": after}))
    if before == after:
        assert rows == []
    elif without_nulls(before) != without_nulls(after):
        assert rows


def test_paths_have_indices_in_brackets_and_odd_keys_in_quotes() -> None:
    assert format_path(("weights", 0, "source")) == "weights[0].source"
    assert format_path(("pins", "weights.a")) == 'pins["weights.a"]'


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (999_996, "1.00 MB"), (3 * 10**15, "3000.00 TB")],
)  # fmt: skip
def test_sizes_of_caches_are_decimal_with_two_digits(count: int, shown: str) -> None:
    assert decimal_size(count) == shown
