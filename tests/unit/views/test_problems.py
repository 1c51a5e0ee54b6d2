"""Errors and diagnostics as people see them."""

from __future__ import annotations

from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.views.problems import count_line, diagnostic_lines


def missing(address: str) -> Diagnostic:
    where = Position("trainctl.yaml", 3, 3, lines=["", "", "  fit: {" + "x" * 200 + "}"])
    return error("no program", "Install it.", code="missing-on-host", address=address, where=where)


def test_equal_problems_of_a_matrix_are_shown_once() -> None:
    """With their number; another job's is its own."""
    problems = [missing(f'job.fit["lr={n}"]') for n in range(96)]
    lines = diagnostic_lines([*problems, missing("job.other")])
    assert len(lines) == 8
    assert lines[0].endswith('error: job.fit["lr=0"] and 95 more: no program [missing-on-host]')
    assert "job.other: no program" in lines[4]
    assert count_line(problems) == "96 errors"
