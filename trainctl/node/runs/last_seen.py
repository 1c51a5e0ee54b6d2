"""The processes of a run as they were last seen: what whoever finds them without supervisor and warden can know them by.

An environment can be emptied, a session and a parent be left; a process and its start can't be changed. See DESIGN.md, "Runs".
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterable, List

from trainctl.base.files import read_json, write_json
from trainctl.base.processes import boot_id, descendants, start_ticks
from trainctl.node.system.ending import kill_all

_NAME = "processes.json"


def note(directory: Path, pids: Iterable[int]) -> None:
    """Write down who is there now."""
    seen = ((pid, start_ticks(pid)) for pid in pids)
    known = [[pid, ticks] for pid, ticks in seen if ticks is not None]
    write_json(directory / _NAME, {"boot": boot_id(), "processes": known}, durable=False)


def kill(directory: Path) -> None:
    """Kill who is left of those, and what these have begun since."""
    found = read_json(directory / _NAME) or {}
    if found.get("boot") == boot_id():
        known = [(int(pid), int(ticks)) for pid, ticks in found["processes"]]

        def left() -> List[int]:
            here = [pid for pid, ticks in known if start_ticks(pid) == ticks]
            return here + [below for pid in here for below in descendants(pid)]

        kill_all(left)
    with contextlib.suppress(FileNotFoundError):
        (directory / _NAME).unlink()
