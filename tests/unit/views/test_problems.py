"""Errors and diagnostics as people see them."""

from __future__ import annotations

import pytest

from trainctl.errors import StateError, TrainctlError, UsageError
from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.views.problems import count_line, diagnostic_lines, problem_lines


def missing(address: str, line: int = 3) -> Diagnostic:
    """What a job lacks."""
    text = ["", "", "  fit: {" + "x" * 200 + "}"]
    where = Position("trainctl.yaml", line, 3, lines=text)
    return error(
        "no program x", "Install it.", code="missing-on-host", address=address, where=where
    )


def test_what_all_jobs_of_a_matrix_lack_is_told_once() -> None:
    """With how many they are; another job's is its own."""
    found = [missing(f'job.fit["lr={n}"]') for n in range(96)]
    lines = diagnostic_lines([*found, missing("job.other")])
    assert len(lines) == 8
    assert lines[0].endswith('error: job.fit["lr=0"] and 95 more: no program x [missing-on-host]')
    assert "job.other: no program" in lines[4]
    assert count_line(found) == "96 errors"


def test_the_line_fits_the_window() -> None:
    """Its caret stays below its place."""
    for width in (40, 60, 200, None):
        lines = diagnostic_lines([missing("job.fit")], width=width)
        assert max(map(len, lines[1:3])) <= min(width or 80, 80)
        assert lines[2].index("^") == lines[1].index("fit")


@pytest.mark.parametrize(
    ("failure", "lines"),
    [
        (UsageError("stop takes an address"), ["error: stop takes an address [wrong-usage]"]),
        (TrainctlError("x: no space left"), ["error: x: no space left [failed]"]),
        (
            StateError("it can't be read", "Why."),
            ["error: it can't be read [state-failed]", "  Why.", "For details, run: trainctl explain state-failed"],
        ),
    ],
)  # fmt: skip
def test_every_error_shows_its_code(failure: TrainctlError, lines: list[str]) -> None:
    """Where there is more to read about it than the message says, it is said how."""
    assert problem_lines(failure) == lines
