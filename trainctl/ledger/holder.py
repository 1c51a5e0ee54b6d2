"""Who this process is, and whether another one is dead."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import subprocess
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

from trainctl.ledger.state import Holder

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_ENDED = ("Z", "X")


def this_process() -> Holder:
    """This process as a holder of leases. Not cached: a forked child is somebody else."""
    pid = os.getpid()
    return Holder(_machine(), _boot(), pid, _started(pid) or 0, _who())


def is_dead(holder: Holder) -> bool | None:
    """True only if that process can't be alive any more; False if it is; None if nobody here can tell."""
    if holder.machine != _machine():
        return None
    if holder.boot != _boot():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists, and is somebody else's
    started = _started(holder.pid)
    if started is None:
        return None
    return started != holder.started


@cache
def _machine() -> str:
    """One machine, as far as process ids mean the same: clones and containers that share a machine id are others."""
    namespace = ""
    with suppress(OSError):
        namespace = str(_NAMESPACE.readlink())
    text = "\0".join((_machine_id(), platform.node(), namespace))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        with suppress(OSError):
            text = path.read_text().strip()
            if text:
                return text
    return f"{uuid.getnode():012x}"


@cache
def _boot() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return _output("sysctl", "-n", "kern.bootsessionuuid")


@cache
def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


def _started(pid: int) -> int | None:
    """When a process began: clock ticks since boot (Linux) or Unix seconds. -1 if it has ended, None if it can't be seen."""
    if not _NAMESPACE.parent.exists():
        return _started_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return -1 if state in _ENDED else int(fields[18])


def _started_by_ps(pid: int) -> int | None:
    text = _output("ps", "-o", "lstart=", "-p", str(pid))
    try:
        return int(time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None


def _output(*command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
