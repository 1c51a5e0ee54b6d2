"""Limits of matrices; the rest is in ``tests/cases``."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects.manifests import problems

VALUES = ", ".join(map(str, range(50)))


def sweep(name: str, lists: str) -> str:
    return f"  {name}: {{matrix: {{{lists}}}, runtime: {{start_commands: [x]}}}}\n"


def test_combinations_and_their_keys_are_limited(tmp_path: Path) -> None:
    for lists, summary in (
        (f"a: [{VALUES}], b: [{VALUES}]", "too many combinations (2500)"),
        ("a: [" + "x" * 600 + "]", "too long (602 characters)"),
    ):
        (problem,) = problems(tmp_path, "jobs:\n" + sweep("s", lists))
        assert summary in problem.summary


def test_all_matrices_are_limited_together(tmp_path: Path) -> None:
    sweeps = [sweep(f"s{number}", f"a: [{VALUES}]") for number in range(41)]
    (problem,) = problems(tmp_path, "jobs:\n" + "".join(sweeps))
    assert problem.summary == "matrix: the matrices make the manifest too large"
    assert problem.address == "job.s40"
