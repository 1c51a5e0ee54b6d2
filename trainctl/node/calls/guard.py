"""Ending what the calls of a session started, where the session was killed and can't do it itself.

The kernel kills a call whose session dies, but not the programs that the call had started. So a process stands beside the session that
does nothing but read a pipe, whose other end the session alone holds: at its end it kills the groups of the calls that are under way.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Set

from trainctl.base.descriptors import close_all_but

_READ_BYTES = 2**16


class Guard:
    """Begins with the session, by a fork, and ends with it: only a process of one thread may have one."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        if os.fork() == 0:
            try:
                _stand_apart(reader)
                _end(_under_way(reader))
            finally:
                os._exit(0)
        os.close(reader)

    def began(self, group: int) -> None:
        """A call is about to be under way, in a process group of its own."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """It is over, and what it left behind may stay."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._writer, line.encode())


def _stand_apart(reader: int) -> None:
    """Be out of reach of who ends the session's group, and hold nothing of the session's open."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    close_all_but(reader)


def _under_way(reader: int) -> Set[int]:
    """Wait for the session's end; the groups of the calls that had not ended."""
    left = b""
    found: Set[int] = set()
    for data in iter(lambda: os.read(reader, _READ_BYTES), b""):
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            change = found.add if line[:1] == b"+" else found.discard
            change(int(line[1:]))
    return found


def _end(groups: Set[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
