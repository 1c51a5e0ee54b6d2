"""Limits of matrices; the rest is in ``tests/cases``."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects.manifests import problems

VALUES = ", ".join(map(str, range(50)))


def sweep(name: str, lists: str) -> str:
    """A job with a matrix."""
    return f"  {name}: {{matrix: {{{lists}}}, runtime: {{start_commands: [x]}}}}\n"


def test_a_matrix_has_a_limit(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "jobs:\n" + sweep("s", f"a: [{VALUES}], b: [{VALUES}]"))
    assert problem.summary == "matrix: too many combinations (2500)"


def test_all_matrices_have_a_limit_together(tmp_path: Path) -> None:
    sweeps = [sweep(f"s{number}", f"a: [{VALUES}]") for number in range(41)]
    (problem,) = problems(tmp_path, "jobs:\n" + "".join(sweeps))
    assert problem.summary == "matrix: the matrices make the manifest too large"
    assert problem.address == "job.s40"


def test_the_key_of_a_combination_has_a_limit(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "jobs:\n" + sweep("s", "a: [" + "x" * 600 + "]"))
    assert "too long (602 characters)" in problem.summary
