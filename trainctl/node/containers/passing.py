"""Directories for the time of one call, named by the process that has them: what a killed call left goes with the next."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Iterator

from trainctl.base.files import make_directory, remove_tree


@contextlib.contextmanager
def passing(parent: Path, kind: str) -> Iterator[Path]:
    """A private directory ``<kind>-<pid>-<random>`` below ``parent``, gone when the context ends."""
    for path in make_directory(parent).glob(f"{kind}-*"):
        if not _held(path):
            remove_tree(path)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=str(parent)))
    try:
        yield folder
    finally:
        remove_tree(folder)


def in_use(parent: Path, kind: str) -> bool:
    """Whether a living process has one there."""
    return any(_held(path) for path in parent.glob(f"{kind}-*"))


def _held(path: Path) -> bool:
    pid = path.name.split("-")[1]
    return pid.isdigit() and Path("/proc", pid).exists()
