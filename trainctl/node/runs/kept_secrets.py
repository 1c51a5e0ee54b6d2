"""Secrets that a run's node keeps on its disk until the run begins, where their declarations ask for it. See DESIGN.md, "Runs"."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Dict, Mapping, Optional

from trainctl.base.files import create_once, names_in, read_json

_NAME = "secrets.json"


def keep(directory: Path, values: Mapping[str, str]) -> None:
    """Have these in a run's directory, in a file that only this user reads."""
    if kept(directory) != values:
        discard(directory)
        create_once(directory / _NAME, json.dumps(dict(values)).encode())


def kept(directory: Path) -> Optional[Dict[str, str]]:
    """What is kept of a run; None if nothing is."""
    found = read_json(directory / _NAME)
    return found if isinstance(found, dict) else None


def discard(directory: Path) -> None:
    """Have nothing of them left there, also of who was killed while it was written."""
    for name in names_in(directory):
        if name == _NAME or name.startswith(f".{_NAME}."):
            with contextlib.suppress(FileNotFoundError):
                (directory / name).unlink()
