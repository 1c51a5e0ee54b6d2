"""Running trainctl as a program, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
