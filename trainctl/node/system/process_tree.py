"""Terminate all descendants of a process: SIGTERM first, then SIGKILL."""

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
    """Send a signal to all processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> Dict[int, int]:
    """Reap all exited children; their wait statuses by PID."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            statuses[pid] = status
    return statuses


def end_descendants(grace: Callable[[], float], spared: Collection[int] = ()) -> Dict[int, int]:
    """Terminate all descendants of this process, a child subreaper; wait statuses.

    ``grace`` returns seconds from SIGTERM to SIGKILL and is called repeatedly, as it may change. ``spared`` are PIDs of
    helper processes.
    """
    statuses: Dict[int, int] = {}
    send_signal(_remaining(spared, statuses), signal.SIGTERM)
    start = time.monotonic()
    while time.monotonic() < start + grace() and _remaining(spared, statuses):
        time.sleep(_POLL_SECONDS)
    kill_until_none(lambda: _remaining(spared, statuses))
    statuses.update(reap())  # children that exited since the last check
    return statuses


def kill_marked(entry: bytes) -> None:
    """Kill processes with the entry in their environment."""
    kill_until_none(lambda: find_by_environment(entry))


def kill_until_none(find_pids: Callable[[], Sequence[int]]) -> None:
    """Kill processes until none are found."""
    for _ in range(_KILL_ROUNDS):
        pids = find_pids()
        if not pids:
            return
        send_signal(pids, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _remaining(spared: Collection[int], statuses: Dict[int, int]) -> List[int]:
    statuses.update(reap())
    return [pid for pid in descendants(os.getpid()) if pid not in spared]
