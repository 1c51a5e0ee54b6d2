"""Thinning of the points that a run reports."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.base import points as module
from trainctl.base.points import KeyPoints, points_json, update_points

numbers = st.floats(allow_nan=False, allow_infinity=False)
MOST = 40


@pytest.fixture(autouse=True, scope="module")
def few_points() -> Any:
    """Keep 40 points instead of 20,000."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MAX_POINTS", MOST)
        yield


def reported(values: list[float]) -> KeyPoints:
    """Points whose step is their number."""
    points = KeyPoints()
    for number, value in enumerate(values):
        points.add(value, number, 1e9 + number)
    return points


@given(st.lists(numbers, min_size=1, max_size=500))
def test_thinning_keeps_first_last_and_extremes_and_is_even(values: list[float]) -> None:
    points = reported(values)
    kept, steps, times = points.columns()
    numbers = [int(step) for step in steps]
    assert numbers == sorted(set(numbers))
    assert [values[number] for number in numbers] == list(kept)
    assert [1e9 + number for number in numbers] == list(times)
    assert len(kept) <= MOST
    assert (numbers[0], numbers[-1]) == (0, len(values) - 1)
    assert (min(kept), max(kept)) == (min(values), max(values))
    extremes = {len(values) - 1, values.index(min(values)), values.index(max(values))}
    assert {*numbers} - extremes <= {*range(0, len(values), points.stride)} <= {*numbers}
    if len(values) <= MOST - 3:
        assert list(kept) == values
    else:
        assert len(kept) >= MOST / 2 - 3


@given(st.lists(numbers, min_size=2, max_size=300), st.data())
def test_a_reader_that_has_some_points_gets_all(values: list[float], data: st.DataObject) -> None:
    read: dict[str, KeyPoints] = {}
    for end in sorted(data.draw(st.sets(st.integers(1, len(values)), max_size=5))):
        known = {key: points.position for key, points in read.items()}
        document = points_json({"loss": reported(values[:end])}, known)
        update_points(read, json.loads(json.dumps(document)))
        assert read["loss"].columns() == reported(values[:end]).columns()
        assert read["loss"].result == reported(values[:end]).result


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 20), numbers), max_size=30), st.integers(0, 20)
)
def test_the_value_at_a_step(reports: list[tuple[int | None, float]], step: int) -> None:
    """That of the highest step up to it; a run that was resumed reports steps again."""
    points = KeyPoints()
    for at, value in reports:
        points.add(value, at, 0.0)
    known = [
        (at, number) for number, (at, _) in enumerate(reports) if at is not None and at <= step
    ]
    expected = reports[max(known)[1]][1] if known else None
    assert points.value_at(step) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"data": "no"},
        {"data": ""},
        {"stride": 0},
        {"stride": "a"},
        {"count": 1},
        {"count": 3},
        {"last": [0]},
        {"min": None},
        {"max": [0, "a", None, 0]},
    ],
    ids=str,
)
def test_invalid_points_are_refused(change: dict[str, Any]) -> None:
    points = reported([1.0, 2.0])
    document = points_json({"loss": points})
    document["loss"].update(change)
    documents: tuple[Any, ...] = (document, [], {"loss": 1})
    for invalid in documents:
        with pytest.raises(ValueError, match="invalid points"):
            update_points({}, invalid)
    assert not math.isnan(points.columns()[1][0])
