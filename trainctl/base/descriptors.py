"""What a process keeps open that goes its own way: its standard streams, and what its modules are loaded from."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Set

_OPEN = "/proc/self/fd/"


def close_all_but(*kept: int) -> None:
    """Close every file of this process but the standard ones, that of the program, and some more."""
    spared = {0, 1, 2, *kept, *_program()}
    for number in [int(path.name) for path in Path(_OPEN).iterdir()]:
        if number not in spared:
            with contextlib.suppress(OSError):  # the one that listed them is closed already
                os.close(number)


def _program() -> Set[int]:
    """The file in memory that this program was checked in and is loaded from (``trainctl/remote/bootstrap.py``)."""
    names = (path[len(_OPEN) :] for path in sys.path if path.startswith(_OPEN))
    return {int(name) for name in names if name.isdigit()}
