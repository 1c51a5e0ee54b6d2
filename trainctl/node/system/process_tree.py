"""Ending a tree of processes that can't be left: asked first, then made to."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Callable, Collection, Dict, Iterable, List, Sequence

from trainctl.base.system.processes import descendants, find_by_environment

_POLL_SECONDS = 0.05
_KILL_ROUNDS = 200


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> Dict[int, int]:
    """Collect the children that have ended: their wait statuses."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found[pid] = status
    return found


def end_descendants(grace: Callable[[], float], spared: Collection[int] = ()) -> Dict[int, int]:
    """End everything below this process, which must be a child subreaper: TERM, the grace, KILL until nobody is left.

    ``grace`` is asked again and again, as it may be changed meanwhile: seconds from the beginning. ``spared`` are helpers of
    this process itself. The wait statuses of the children that ended meanwhile.
    """
    ended: Dict[int, int] = {}
    send_signal(_remaining(spared, ended), signal.SIGTERM)
    begun = time.monotonic()
    while time.monotonic() < begun + grace() and _remaining(spared, ended):
        time.sleep(_POLL_SECONDS)
    kill_until_none(lambda: _remaining(spared, ended))
    # Who died since the last look is no descendant any more, and yet to be collected.
    ended.update(reap())
    return ended


def kill_marked(entry: bytes) -> None:
    """Kill whatever was started with the entry in its environment: what is left of a run that nobody supervises."""
    kill_until_none(lambda: find_by_environment(entry))


def kill_until_none(look: Callable[[], Sequence[int]]) -> None:
    """Kill whatever it finds until it finds nothing more."""
    for _ in range(_KILL_ROUNDS):
        left = look()
        if not left:
            return
        send_signal(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _remaining(spared: Collection[int], ended: Dict[int, int]) -> List[int]:
    ended.update(reap())
    return [pid for pid in descendants(os.getpid()) if pid not in spared]
