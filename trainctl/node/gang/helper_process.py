"""The process by which a supervisor speaks with its gang: it answers while the supervisor is busy, and dies with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any, Callable, Dict, List, Optional, Sequence

from trainctl.base.descriptors import start_child
from trainctl.base.protocol.spec import Gang

Value = Dict[str, Any]
_READ_BYTES = 2**16


class Line:
    """One end of a pair of sockets between a supervisor and its helper: a line of JSON each way for each thing said."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._text = b""
        self.open = True

    def fileno(self) -> int:
        """For those who wait for it."""
        return self._end.fileno()

    def say(self, value: Value) -> None:
        """Say it; nobody hears it if the other side is gone."""
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps(value).encode() + b"\n")

    def arrived(self, seconds: float = 0.0) -> List[Value]:
        """What was said; waits so long for it. Afterwards ``open`` tells whether the other side is still there."""
        if not self.open or not select.select([self._end], [], [], seconds)[0]:
            return []
        try:
            data = self._end.recv(_READ_BYTES)
        except OSError:
            data = b""
        self.open = bool(data)
        *lines, self._text = (self._text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Hang up."""
        self._end.close()


class Helper:
    """A child that runs ``work`` with the other end of ``line``, and keeps ``kept`` open."""

    def __init__(self, work: Callable[[Line], None], kept: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair()

        def run() -> int:
            work(Line(theirs))
            return 0

        self._pid = start_child(run, theirs.fileno(), *kept)
        theirs.close()
        self.line = Line(ours)

    def finish(self, seconds: float) -> None:
        """Let it say what is left to be said, but not longer than that."""
        while self.line.open and seconds > 0:
            self.line.arrived(0.1)
            seconds -= 0.1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self.line.close()


class Limits:
    """When the other side counts as gone, in seconds: after its connection closed and did not come back, or after it was silent."""

    def __init__(self, found: Optional[Gang] = None) -> None:
        """``found`` is the specification's ``gang``."""
        found = found or Gang()
        self.closed = found.get("closed_seconds", 10.0)
        self.silent = found.get("silent_seconds", 60.0)

    @property
    def pulse(self) -> float:
        """How often each side says that it is there."""
        return min(2.0, self.silent / 10)

    @property
    def quiet(self) -> float:
        """After how much silence another connection is tried: the network may have forgotten this one."""
        return self.silent / 4
