"""Ending a tree of processes that can't be left: asked first, then made to."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Callable, Collection, Dict, Iterable, List, Sequence

from trainctl.base.files import read_json, write_json
from trainctl.base.processes import boot_id, descendants, start_ticks, with_environment

_POLL_SECONDS = 0.05
_KILL_ROUNDS = 200
_NOTED = "processes.json"


def send(pids: Iterable[int], number: int) -> None:
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
    send(_left(spared, ended), signal.SIGTERM)
    begun = time.monotonic()
    while time.monotonic() < begun + grace() and _left(spared, ended):
        time.sleep(_POLL_SECONDS)
    kill_all(lambda: _left(spared, ended))
    # Who died since the last look is no descendant any more, and yet to be collected.
    ended.update(reap())
    return ended


def kill_marked(entry: bytes) -> None:
    """Kill whatever was started with the entry in its environment: what is left of a run that nobody supervises."""
    kill_all(lambda: with_environment(entry))


def note_processes(directory: Path, pids: Iterable[int]) -> None:
    """Write down a run's processes: an environment can be emptied and a parent left, but PID and start time stay."""
    seen = ((pid, start_ticks(pid)) for pid in pids)
    known = [[pid, ticks] for pid, ticks in seen if ticks is not None]
    write_json(directory / _NOTED, {"boot": boot_id(), "processes": known}, durable=False)


def kill_noted(directory: Path) -> None:
    """Kill those of the noted processes that are left, and what they have started since."""
    found = read_json(directory / _NOTED) or {}
    if found.get("boot") == boot_id():
        known = [(int(pid), int(ticks)) for pid, ticks in found["processes"]]

        def left() -> List[int]:
            here = [pid for pid, ticks in known if start_ticks(pid) == ticks]
            return here + [below for pid in here for below in descendants(pid)]

        kill_all(left)
    with contextlib.suppress(FileNotFoundError):
        (directory / _NOTED).unlink()


def kill_all(look: Callable[[], Sequence[int]]) -> None:
    """Kill whatever it finds until it finds nothing more."""
    for _ in range(_KILL_ROUNDS):
        left = look()
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _left(spared: Collection[int], ended: Dict[int, int]) -> List[int]:
    ended.update(reap())
    return [pid for pid in descendants(os.getpid()) if pid not in spared]
