"""Rows of a plan show every difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainctl.views.plan.changes import changed_rows

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
    rows = list(changed_rows({"a": before}, {"a": after}))
    if before == after:
        assert rows == []
    elif without_nulls(before) != without_nulls(after):
        assert rows
