"""Manifests that can't be used, and every problem that is reported of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.projects.manifests import problems
from trainctl.desired.values import JobOverrides

BOOKS = ("sections", "locations", "secrets", "jobs", "expressions", "matrix", "overrides")


@pytest.mark.parametrize("case", [case for book in BOOKS for case in cases(f"problems/{book}")])
def test_all_problems_are_reported_with_their_places(tmp_path: Path, case: dict[str, Any]) -> None:
    """Each is ``LINE:COLUMN SUMMARY``; what is behind ``|`` is part of its detail."""
    directory = tmp_path / "demo"
    directory.mkdir()
    overrides = JobOverrides(case.get("set", {}), tuple(case.get("jobs", ())))
    found = problems(
        directory, case["manifest"], variables=case.get("variables"), overrides=overrides
    )
    expected = [text.partition(" | ") for text in case["problems"]]
    places = [str(problem.where).removeprefix("trainctl.yaml:") for problem in found]
    reported = [f"{place} {one.summary}" for place, one in zip(places, found, strict=True)]
    assert reported == [summary for summary, _, _ in expected]
    for problem, (_, _, detail) in zip(found, expected, strict=True):
        assert detail in problem.detail
        assert problem.address == case.get("address", problem.address)
        assert problem.code == case.get("code", problem.code)
