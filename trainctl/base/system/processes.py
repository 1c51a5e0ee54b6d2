"""Identify processes across pid reuse, boots and machines; inspect them by /proc."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

from trainctl.base.lazy_named_tuple import NamedTuple

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_AFTER_NAME_STATE = 0
_AFTER_NAME_PARENT = 1
_AFTER_NAME_CPU = slice(11, 15)
_AFTER_NAME_START = 19
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
"""Longer than any ``stat``: 52 fields of up to 20 digits and a name of up to 64 characters."""
_ENDED = -1
"""Start time of a zombie; differs from that of any live process."""


class Process(NamedTuple):
    """A process, unique across pid reuse.

    ``machine`` and ``boot`` include the pid namespace. ``started``: clock ticks since boot, 0 if hidden.
    """

    machine: str
    boot: str
    pid: int
    started: int


def describe_process(pid: Optional[int] = None) -> Process:
    """Return the process with a pid, by default this one; not cached (forks)."""
    pid = os.getpid() if pid is None else pid
    return Process(_machine(), _boot(), pid, _start_time(pid) or 0)


def is_dead(other: Process) -> Optional[bool]:
    """Return True if the process has ended, False if it runs, None if unknown."""
    if other.boot != _boot():
        return True if other.machine == _machine() else None
    try:
        os.kill(other.pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it exists, of another user
    started = _start_time(other.pid)
    if started is None or not other.started:
        return None
    return started != other.started


def process_record(pid: Optional[int] = None) -> Dict[str, Any]:
    """Return a process (by default this one) as a record for ``is_alive``."""
    return describe_process(pid)._asdict()


def is_alive(record: Optional[Mapping[str, Any]]) -> bool:
    """Return whether the process of a valid record certainly runs."""
    if not isinstance(record, Mapping) or not isinstance(record.get("pid"), int):
        return False
    return is_dead(Process(*map(record.get, Process._fields))) is False  # type: ignore[arg-type]


@lru_cache(maxsize=None)
def boot_id() -> str:
    """Return the kernel's boot id; empty if there is none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def descendants(pid: int) -> List[int]:
    """Return all descendants but zombies, children before grandchildren."""
    children: Dict[int, List[int]] = {}
    for other in all_pids():
        fields = _fields(other)
        if fields is not None and fields[_AFTER_NAME_STATE] not in "ZX":
            children.setdefault(int(fields[_AFTER_NAME_PARENT]), []).append(other)
    pids: List[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        pids += level
    return pids


def parent_of(pid: int) -> Optional[int]:
    """Return the parent's pid; None if there is no such process."""
    fields = _fields(pid)
    return int(fields[_AFTER_NAME_PARENT]) if fields else None


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of processes and the children they have waited for."""
    ticks = [sum(map(int, fields[_AFTER_NAME_CPU])) for fields in map(_fields, pids) if fields]
    return round(sum(ticks) / _TICKS, 2)


def find_by_environment(entry: bytes) -> List[int]:
    """Return this user's processes with ``NAME=value`` in their environment."""
    pids = []
    for pid in all_pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if entry in environment.split(b"\0") and _start_time(pid) not in (None, _ENDED):
            pids.append(pid)
    return pids


def all_pids() -> List[int]:
    """Return every visible process."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - a node may have thousands


def _fields(pid: int) -> Optional[List[str]]:
    """Return the fields of ``/proc/PID/stat`` after the name."""
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


@lru_cache(maxsize=None)
def _machine() -> str:
    """Return a hash of machine id, host name and pid namespace."""
    text = "\0".join((_machine_id(), os.uname().nodename, _namespace()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        with contextlib.suppress(OSError):
            text = Path(path).read_text().strip()
            if text:
                return text
    import uuid  # it may run programs to find a network card

    return f"{uuid.getnode():012x}"


@lru_cache(maxsize=None)
def _boot() -> str:
    boot = boot_id().replace("-", "") or _machine()
    return f"{boot}.{_namespace()}"


@lru_cache(maxsize=None)
def _namespace() -> str:
    """Return the number of the pid namespace; empty without ``/proc``."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _start_time(pid: int) -> Optional[int]:
    """Return the start time; ``_ENDED`` for a zombie, None if unknown."""
    fields = _fields(pid)
    if fields is None:
        return None
    return _ENDED if fields[_AFTER_NAME_STATE] in "ZX" else int(fields[_AFTER_NAME_START])
