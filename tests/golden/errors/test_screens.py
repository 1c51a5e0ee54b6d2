"""Errors of wrong manifests, word for word; the manifests are in tests/cases/errors.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import text
from tests.support.cases import cases
from tests.support.projects.manifests import problems
from trainctl.errors import ManifestError
from trainctl.views.problems import problem_lines


@pytest.mark.parametrize("case", cases("errors"))
def test_screen(case: dict[str, str], tmp_path: Path, screen: SnapshotAssertion) -> None:
    """Values that may be secrets are on no line."""
    ((name, manifest),) = case.items()
    shown = text(problem_lines(ManifestError(tuple(problems(tmp_path, manifest, name)))))
    assert shown == screen
    assert "planted" not in shown.lower()
