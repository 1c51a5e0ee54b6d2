"""A program for nodes that does what ``trainctl.testing.session`` asks of it. Standard library, Python 3.8."""

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
_seen: List[str] = []


def echo(request: Request) -> Dict[str, Any]:
    """The request."""
    return dict(request)


def who(request: Request) -> Dict[str, Any]:
    """This process, the one that it is a fork of, and how many calls this module has seen in this process."""
    _seen.append("call")
    return {"pid": os.getpid(), "session": os.getppid(), "seen": len(_seen)}


def later(request: Request) -> Dict[str, Any]:
    """Say something, and wait until the file ``until`` is there."""
    emit({"said": True})
    while not Path(request["until"]).exists():
        time.sleep(_POLL_SECONDS)
    return {}


def forever(request: Request) -> Dict[str, Any]:
    """Start a program and wait for it, which takes forever."""
    process = subprocess.Popen(["sleep", "600"])
    emit({"pid": os.getpid(), "session": os.getppid(), "started": process.pid})
    process.wait()
    return {}


def leave(request: Request) -> Dict[str, Any]:
    """Leave a process behind that holds this one's streams open."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return {"left": process.pid}


def crash(request: Request) -> Dict[str, Any]:
    """End as a program does that is wrong."""
    raise ZeroDivisionError("on purpose")


def die(request: Request) -> Dict[str, Any]:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def imports(request: Request) -> Dict[str, Any]:
    """Import a module of this program that nothing has needed yet."""
    from trainctl.base import pagination

    return {"found": pagination.__name__}


_VERBS: Mapping[str, Callable[[Request], Dict[str, Any]]] = {
    one.__name__: one for one in (echo, who, later, forever, leave, crash, die, imports)
}


def load(method: str) -> None:
    """Everything is loaded already."""


def main() -> int:
    """Do the verb that the last argument names."""
    write_line({"result": _VERBS[sys.argv[-1]](read_request(sys.stdin.buffer))})
    return 0
