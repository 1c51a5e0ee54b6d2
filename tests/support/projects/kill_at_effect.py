"""Runs trainctl and kills it before its n-th effect, without the program knowing.

    python -m tests.support.projects.kill_at_effect N COUNTFILE apply --auto-approve

An effect is whatever can be seen from outside this process: a file that is created, renamed, linked or removed, a
directory, a child process that is started. Python announces each of them before it happens (PEP 578). With N = 0 nothing
is killed and the number of effects is written to COUNTFILE.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

_EFFECTS = frozenset(
    {
        "os.rename",
        "os.link",
        "os.symlink",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.truncate",
        "subprocess.Popen",
        "http.client.send",
    }
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _is_effect(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        path, _, flags = args
        outside = isinstance(path, str | bytes | os.PathLike) and not os.fsdecode(path).startswith(
            ("/dev/", "/proc/")
        )
        return bool(outside and flags & _WRITES)
    return event in _EFFECTS


def kill_at_effect(lethal: int, count: Path | None = None) -> None:
    """Kill this process before its effect of that number; with 0 nothing is killed, and ``count`` is told how many there were."""
    lock = threading.Lock()
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if not _is_effect(event, args):
            return
        with lock:
            seen += 1
            if seen == lethal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if lethal == 0 and count is not None:
        import atexit

        atexit.register(lambda: count.write_text(str(seen)))


def kill_supervisor_at_effect(lethal: int, killed: Path) -> None:
    """Kill the supervisor that is started from here, and no other process, before its effect of that number, counted from its claim of the run; ``killed`` is made then."""
    doomed = seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal doomed, seen
        if event == "os.link" and not doomed and Path(os.fsdecode(args[1])).name == "claim.1":
            doomed = os.getpid()
        if doomed == os.getpid() and _is_effect(event, args):
            seen += 1
            if seen == lethal:
                killed.touch()
                os.kill(doomed, signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    from trainctl.cli.main import main

    sys.dont_write_bytecode = True
    kill_at_effect(int(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
