"""What can't be done is refused when it is planned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support.cases import cases
from tests.support.projects.manifests import desired
from trainctl.model.redaction import Redactor
from trainctl.operations.plan_checks import secret_leaks, unsupported


@pytest.mark.parametrize("case", cases("operations/unsupported"))
def test_unsupported_manifests_are_refused(tmp_path: Path, case: dict[str, Any]) -> None:
    """With one error, which says what to write instead."""
    errors = [*unsupported(desired(tmp_path, yaml.safe_dump(case["manifest"])))]
    assert [error.summary for error in errors] == ([case["error"]] if case["error"] else [])
    assert all(error.detail for error in errors)


def test_each_resource_with_a_secret_is_named(tmp_path: Path) -> None:
    """Among any number of others."""
    leaks = {"p7": "see hunter2 there", "p2100": 'a "quoted" hunter2'}
    text = {f"p{number}": {"description": leaks.get(f"p{number}", "")} for number in range(2200)}
    workspace: Any = SimpleNamespace(
        desired=desired(tmp_path, yaml.safe_dump({"projects": text})),
        settings=SimpleNamespace(redactor=(redactor := Redactor())),
    )
    assert [*secret_leaks(workspace)] == []
    redactor.register("hunter2")
    found = {problem.address for problem in secret_leaks(workspace)}
    assert found == {f"project.{name}" for name in leaks}
