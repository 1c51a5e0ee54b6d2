"""Identify processes across pid reuse, boots and machines, and inspect them through ``/proc``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_AFTER_NAME_STATE = 0
_AFTER_NAME_PARENT = 1
_AFTER_NAME_CPU = slice(11, 15)
_AFTER_NAME_START = 19
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
"""More than any ``stat`` has: 52 fields of 20 digits, and a name of 64 characters at most."""
_ENDED = -1
"""Start time of a zombie, which differs from that of any living process."""


class Process(NamedTuple):
    """A process, distinct from every other that has or had its pid.

    ``machine`` and ``boot`` contain the pid namespace, so that pids are compared only where they mean the same.
    ``started`` is in clock ticks since boot, in Unix seconds where there is no ``/proc``, 0 if it is hidden.
    """

    machine: str
    boot: str
    pid: int
    started: int


def describe_process(pid: Optional[int] = None) -> Process:
    """The process with that pid, by default this one. Not cached, as a forked child is another process."""
    pid = os.getpid() if pid is None else pid
    return Process(_machine(), _boot(), pid, _start_time(pid) or 0)


def is_dead(other: Process) -> Optional[bool]:
    """True if that process has certainly ended, False if it runs, None if this process can't tell."""
    if other.boot != _boot():
        return True if other.machine == _machine() else None
    try:
        os.kill(other.pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it exists and belongs to another user
    started = _start_time(other.pid)
    if started is None or not other.started:
        return None
    return started != other.started


def process_record(pid: Optional[int] = None) -> Dict[str, Any]:
    """A process (by default this one) as a record, for ``is_alive``."""
    return describe_process(pid)._asdict()


def is_alive(record: Optional[Mapping[str, Any]]) -> bool:
    """Whether the process of a record certainly runs. False for anything that is not such a record."""
    if not isinstance(record, Mapping) or not isinstance(record.get("pid"), int):
        return False
    return is_dead(Process(*map(record.get, Process._fields))) is False  # type: ignore[arg-type]


@lru_cache(maxsize=None)
def boot_id() -> str:
    """The kernel's name for the present boot; empty if it has none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return _output("sysctl", "-n", "kern.bootsessionuuid")


def start_ticks(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot; None if there is none, or only a zombie."""
    started = _start_time(pid)
    return None if started == _ENDED else started


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


def find_by_environment(entry: bytes) -> List[int]:
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


@lru_cache(maxsize=None)
def _machine() -> str:
    """Hash of machine id, host name and pid namespace: clones and containers often share the first."""
    text = "\0".join((_machine_id(), os.uname().nodename, _namespace()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        with contextlib.suppress(OSError):
            text = Path(path).read_text().strip()
            if text:
                return text
    import uuid  # only where it is needed: it may run programs to find a network card

    return f"{uuid.getnode():012x}"


@lru_cache(maxsize=None)
def _boot() -> str:
    boot = boot_id().replace("-", "") or _machine()
    return f"{boot}.{_namespace()}"


@lru_cache(maxsize=None)
def _namespace() -> str:
    """Number of this process's pid namespace; empty where there is no ``/proc``."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _start_time(pid: int) -> Optional[int]:
    """When a process started; ``_ENDED`` for a zombie, None if it doesn't exist or is hidden."""
    if not _namespace():
        return _start_time_by_ps(pid)
    fields = _fields(pid)
    if fields is None:
        return None
    return _ENDED if fields[_AFTER_NAME_STATE] in "ZX" else int(fields[_AFTER_NAME_START])


def _start_time_by_ps(pid: int) -> Optional[int]:
    text = _output("ps", "-o", "lstart=", "-p", str(pid))
    try:
        return int(time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None


def _output(*command: str) -> str:
    import subprocess  # only where there is no /proc

    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
