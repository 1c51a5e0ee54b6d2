"""Running trainctl as a program, as a user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.projects.command_forks import can_be_forked, forked

ROOT = Path(__file__).resolve().parents[3]


def trainctl(
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; standard input is empty unless given, and no stream is a terminal."""
    argv = ("-m", "trainctl", *arguments)
    environ = {**os.environ, **(environment or {})}
    if not stdin and can_be_forked(argv, environ):
        return forked(argv, cwd or Path.cwd(), environ, seconds)
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env=environ,
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
