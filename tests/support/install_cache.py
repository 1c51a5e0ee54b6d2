"""What tests install for themselves, once: whoever of several processes comes first does it, and the others wait."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def cache_directory(name: str) -> Path:
    """A directory that outlives test runs and that git ignores."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) / "trainctl-tests" if home else _ROOT / ".cache"
    path = base / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def install_once(name: str, install: Callable[[Path], None]) -> Path:
    """The directory that ``install`` has filled; it is given one that is not there, which stays where it is.

    What an installation that failed or was killed left there goes before the next.
    """
    folder = cache_directory(name)
    place = folder / "it"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            install(place)
            (folder / "complete").touch()
    return place
