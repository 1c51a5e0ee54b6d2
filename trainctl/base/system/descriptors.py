"""Child processes that keep only the files that they need."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Callable, Set

from trainctl.base.system.syscalls import PR_SET_PDEATHSIG, prctl

_OPEN = "/proc/self/fd/"


def close_other_descriptors(*kept: int) -> None:
    """Close every file of this process except the standard streams, the program and ``kept``."""
    spared = {0, 1, 2, *kept, *_program_descriptors()}
    for number in [int(path.name) for path in Path(_OPEN).iterdir()]:
        if number not in spared:
            with contextlib.suppress(OSError):  # the one that listed them is closed already
                os.close(number)


def _program_descriptors() -> Set[int]:
    """The file in memory that this program was checked in and is loaded from (``trainctl/remote/archive.py``)."""
    names = (path[len(_OPEN) :] for path in sys.path if path.startswith(_OPEN))
    return {int(name) for name in names if name.isdigit()}


def fork_child(work: Callable[[], int], *kept: int) -> int:
    """Fork a child that keeps these files open, exits with what ``work`` returns, and is killed with its parent; its PID."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        close_other_descriptors(*kept)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            code = work()
    except BaseException:  # noqa: BLE001 - this process has no caller
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)
