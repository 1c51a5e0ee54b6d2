"""CPU, memory, disk and network usage of a run and its machine."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

from trainctl.base.system.processes import cpu_seconds, descendants, parent_of
from trainctl.node.containers.cleanup import ContainerProcesses

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK_UNIT = 512  # unit of st_blocks on every file system: stat(2)

Json = Dict[str, Any]


def process_usage(
    supervisor: int, ended_seconds: float, container_processes: ContainerProcesses
) -> Json:
    """CPU seconds and memory of a job; ``ended_seconds``: CPU time of reaped ones."""
    own = os.getpid()
    below = [pid for pid in descendants(supervisor) if pid != own]
    job = [*job_pids(supervisor, below), *container_processes.pids]
    return {
        "processes": len(job),
        "cpu_seconds": round(
            ended_seconds + cpu_seconds(below) + container_processes.cpu_seconds, 2
        ),
        "cpu_memory_usage_bytes": sum(map(_memory, job)),
    }


def job_pids(supervisor: int, below: Iterable[int]) -> List[int]:
    """Processes below a supervisor except its direct children, such as the warden."""
    return [pid for pid in below if parent_of(pid) != supervisor]


def host_usage() -> Json:
    """Counters of the machine since boot, and memory."""
    memory = _parse_table(Path("/proc/meminfo"))
    received, sent = _network()
    return {
        "cpu_count": os.cpu_count() or 1,
        "cpu_seconds": _busy_seconds(),
        "memory_total_bytes": memory.get("MemTotal", 0) * 1024,
        "memory_available_bytes": memory.get("MemAvailable", 0) * 1024,
        "network_received_bytes": received,
        "network_sent_bytes": sent,
    }


def file_system_usage(path: Path) -> Optional[Json]:
    """Usage of the file system that holds a directory, computed as ``df`` does."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    available = status.f_bavail * status.f_frsize
    return {"utilization": round(used / max(used + available, 1), 4), "free_bytes": available}


def disk_usage(paths: Iterable[Path], deadline: float) -> Optional[int]:
    """Bytes on disk below directories, each inode once; None after ``deadline``."""
    total = 0
    inodes = set()
    for top in paths:
        for directory, _, names in os.walk(str(top)):
            if time.monotonic() > deadline:
                return None
            for name in names:
                try:
                    status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - there may be millions
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    if (status.st_dev, status.st_ino) in inodes:
                        continue
                    inodes.add((status.st_dev, status.st_ino))
                total += status.st_blocks * _BLOCK_UNIT
    return total


def variables_of(pids: Iterable[int]) -> Mapping[str, str]:
    """Environment of the first of these processes whose environment is readable."""
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text:
            return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    return {}


def _memory(pid: int) -> int:
    """Memory of a process: proportional share (PSS) if reported, else RSS."""
    try:
        return _parse_table(Path(f"/proc/{pid}/smaps_rollup"))["Pss"] * 1024
    except (OSError, KeyError):
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _parse_table(path: Path) -> Dict[str, int]:
    """Parse ``Name: number kB`` lines."""
    table = {}
    for line in path.read_text().splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdigit():
            table[name] = int(words[0])
    return table


def _busy_seconds() -> float:
    """CPU time of user, nice, system, irq, softirq and steal, of all CPUs: proc(5)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return round((sum(fields[:3]) + sum(fields[5:8])) / _TICKS, 2)


def _network() -> "tuple[int, int]":
    """Bytes received and sent by all interfaces except loopback: proc(5)."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return received, sent
