"""Telling processes apart: by pid, start time and boot, so that a reused pid is nobody we know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

_AFTER_NAME_STATE = 0
_AFTER_NAME_PARENT = 1
_AFTER_NAME_CPU = slice(11, 15)
_AFTER_NAME_START = 19
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
"""More than any ``stat`` has: 52 fields of 20 digits, and a name of 64 characters at most."""


def boot_id() -> str:
    """The kernel's name for the present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identity(pid: Optional[int] = None) -> Dict[str, Any]:
    """What tells a process (by default this one) from every other, of any boot."""
    pid = os.getpid() if pid is None else pid
    return {"pid": pid, "ticks": start_ticks(pid), "boot": boot_id()}


def alive(who: Optional[Mapping[str, Any]]) -> bool:
    """Whether the process with this identity still runs here. What is no identity is dead."""
    if not isinstance(who, Mapping) or not isinstance(who.get("pid"), int):
        return False
    ticks = start_ticks(who["pid"])
    return ticks is not None and ticks == who.get("ticks") and who.get("boot") == boot_id()


def start_ticks(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot; None if there is none, or only a zombie."""
    fields = _fields(pid)
    if fields is None or fields[_AFTER_NAME_STATE] in "ZX":
        return None
    return int(fields[_AFTER_NAME_START])


def descendants(pid: int) -> List[int]:
    """Every process below the given one, children before grandchildren; zombies are left out."""
    children: Dict[int, List[int]] = {}
    for other in all_pids():
        fields = _fields(other)
        if fields is not None and fields[_AFTER_NAME_STATE] not in "ZX":
            children.setdefault(int(fields[_AFTER_NAME_PARENT]), []).append(other)
    found: List[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def parent_of(pid: int) -> Optional[int]:
    """The process's parent; None if there is no such process."""
    fields = _fields(pid)
    return int(fields[_AFTER_NAME_PARENT]) if fields else None


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of the processes and of those that they have waited for, user and system."""
    return round(sum(map(_cpu_ticks, pids)) / _TICKS, 2)


def _cpu_ticks(pid: int) -> int:
    fields = _fields(pid)
    return sum(map(int, fields[_AFTER_NAME_CPU])) if fields else 0


def with_environment(entry: bytes) -> List[int]:
    """Processes of this user that were started with the entry, ``NAME=value``, in their environment."""
    found = []
    for pid in all_pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if entry in environment.split(b"\0") and start_ticks(pid) is not None:
            found.append(pid)
    return found


def all_pids() -> List[int]:
    """Every process that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - a node may have thousands


def _fields(pid: int) -> Optional[List[str]]:
    """The fields of ``/proc/PID/stat`` after the name, which may itself hold spaces and parentheses."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, _STAT_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return text.rpartition(b")")[2].decode().split()
