"""Cases of tests as data: ``tests/cases/NAME.yaml`` maps the name of each case to its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

_CASES = Path(__file__).parents[1] / "cases"


def cases(name: str) -> list[Any]:
    """Parameters for ``pytest.mark.parametrize``, one a case: the value below its name, which is its id."""
    document = yaml.safe_load((_CASES / f"{name}.yaml").read_text())
    return [pytest.param(values, id=str(case)) for case, values in document.items()]


def by_text(name: str) -> list[tuple[str, Any]]:
    """Cases whose names are the texts to parse."""
    return [(case.id or "", case.values[0]) for case in cases(name)]
