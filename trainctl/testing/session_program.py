"""Node program for the tests of ``trainctl.testing.session`` (Python 3.8)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from trainctl.base.protocol.wire import emit, read_request, write_line

Request = Mapping[str, Any]
_POLL_SECONDS = 0.01
_calls: List[str] = []


def echo(request: Request) -> Dict[str, Any]:
    """Return the request."""
    return dict(request)


def identify(request: Request) -> Dict[str, Any]:
    """Return this process, its parent, and the number of calls in this process."""
    _calls.append("call")
    return {"pid": os.getpid(), "session": os.getppid(), "calls": len(_calls)}


def later(request: Request) -> Dict[str, Any]:
    """Send an event, and wait for the file ``until``."""
    emit({"said": True})
    while not Path(request["until"]).exists():
        time.sleep(_POLL_SECONDS)
    return {}


def forever(request: Request) -> Dict[str, Any]:
    """Start a program that never ends, and wait for it."""
    process = subprocess.Popen(["sleep", "600"])
    emit({"pid": os.getpid(), "session": os.getppid(), "started": process.pid})
    process.wait()
    return {}


def leave(request: Request) -> Dict[str, Any]:
    """Leave a process behind that holds the streams open."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return {"left": process.pid}


def crash(request: Request) -> Dict[str, Any]:
    """Raise an exception."""
    raise ZeroDivisionError("on purpose")


def die(request: Request) -> Dict[str, Any]:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def imports(request: Request) -> Dict[str, Any]:
    """Import a module that was not loaded before."""
    from trainctl.base import pagination

    return {"found": pagination.__name__}


_METHODS: Mapping[str, Callable[[Request], Dict[str, Any]]] = {
    method.__name__: method
    for method in (echo, identify, later, forever, leave, crash, die, imports)
}


def load(method: str) -> None:
    """Do nothing, as everything is loaded."""


def main() -> int:
    """Run the method in the last argument."""
    write_line({"result": _METHODS[sys.argv[-1]](read_request(sys.stdin.buffer))})
    return 0
