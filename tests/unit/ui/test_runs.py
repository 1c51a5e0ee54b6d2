"""Thinned lines keep what one sees; lines of hostile logs are bounded and masked."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest

from tests.support.projects.project import project
from tests.support.servers.pages import site_of
from trainctl.base.points import KeyPoints
from trainctl.ui.runs import _shown, line_json


@pytest.mark.parametrize("count", [0, 1, 5, 600, 1201, 20_000])
def test_a_line_keeps_its_ends_and_extremes(count: int) -> None:
    values = array("d", (math.sin(i / 50) for i in range(count)))
    if count > 100:
        values[count // 3], values[count // 2] = 9.0, -9.0
    points = KeyPoints()
    for i, value in enumerate(values):
        points.add(value, i if i > 3 else None, i)
    line = line_json("x", "x", points)
    assert len(line["v"]) <= 1202
    assert len(line["v"]) == len(line["t"]) == len(line["s"])
    if count:
        assert (line["t"][0], line["t"][-1]) == (0.0, count - 1)
        assert min(line["v"]) == pytest.approx(min(values), rel=1e-5)
        assert max(line["v"]) == pytest.approx(max(values), rel=1e-5)
        assert (line["s"][0], line["s"][-1]) == (0.0, count - 1 if count > 4 else 0.0)


def test_values_that_are_not_finite_are_not_drawn() -> None:
    points = KeyPoints()
    points.add(math.inf, 0.0, 0.0)
    points.add(1.0, 1.0, 1.0)
    assert line_json("x", "x", points)["v"] == [1.0]


def test_a_secret_is_masked_before_a_line_is_cut(tmp_path: Path) -> None:
    """Of a progress bar the last state is shown."""
    with project(tmp_path) as made:
        made.variables["TOKEN"] = "s3cret-token"
        made.write({"trainctl.yaml": "secrets: {token: {from: env, name: TOKEN}}\n"})
        site = site_of(made)
        site.start()
        shown = [
            _shown(site, line)
            for line in ("x" * 1995 + "s3cret-token", " 50%\rdone s3cret-token\r", "y" * 3_000_000)
        ]
        site.close()
    assert shown[:2] == ["x" * 1995 + "(reda… 5 more characters", "done (redacted)"]
    assert len(shown[2]) < 2100
