"""What can't be done is refused when it is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cases import cases
from tests.support.projects.manifests import desired
from trainctl.operations.plan_checks import unsupported


@pytest.mark.parametrize("case", cases("operations/unsupported"))
def test_unsupported_manifests_are_refused(tmp_path: Path, case: dict[str, Any]) -> None:
    """With one error, which says what to write instead."""
    errors = [*unsupported(desired(tmp_path, yaml.safe_dump(case["manifest"])))]
    assert [error.summary for error in errors] == ([case["error"]] if case["error"] else [])
    assert all(error.detail for error in errors)
