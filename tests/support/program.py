"""Running trainctl as a program, as a user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def trainctl(
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; standard input is empty unless given, and no stream is a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "trainctl", *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def files_of_project() -> list[str]:
    """Every file that git tracks or would add, relative to the root; skips the test where git can't say."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs git and a checkout")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listed.stdout.splitlines()
