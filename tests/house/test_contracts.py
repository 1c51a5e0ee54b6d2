"""The direction of imports, as pyproject.toml states it, holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.program import ROOT


def test_import_contracts_hold() -> None:
    """Every import-linter contract is kept."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
