"""Files that are reached by links, as long as these stay below a directory."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

from trainctl.node.system.layout import inside


@contextmanager
def held(path: Path, top: Path) -> Iterator[Optional[int]]:
    """A descriptor that names the regular file at a path, wherever links lead; None where that is not below ``top``.

    Nothing is opened yet, which a device or a pipe might notice, and where it lies is asked of what is held: whoever turns a link
    meanwhile changes nothing.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it leads nowhere, or round in circles
        yield None
        return
    try:
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        yield descriptor if regular and inside(real, top.resolve()) else None
    finally:
        os.close(descriptor)


def status_inside(path: Path, top: Path) -> Optional[os.stat_result]:
    """What is known of the regular file that a path leads to; None where that is not below ``top``."""
    with held(path, top) as descriptor:
        return None if descriptor is None else os.fstat(descriptor)


def open_inside(path: Path, top: Path) -> Optional[int]:
    """A descriptor for reading the regular file that a path leads to; None where that is not below ``top``."""
    with held(path, top) as descriptor:
        if descriptor is None:
            return None
        try:
            return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            error.filename = str(path)
            raise
