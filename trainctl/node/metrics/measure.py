"""What a run's processes, directories and GPUs use, and the machine around them. See DESIGN.md, "Metrics"."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from trainctl.base.processes import cpu_seconds, descendants, parent_of
from trainctl.node.containers.leftovers import ServiceProcesses
from trainctl.node.turns.gpus import json_of

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK_UNIT = 512  # of st_blocks, whatever the file system's own block is: stat(2)

Json = Dict[str, Any]


def processes(supervisor: int, ended_seconds: float, apart: ServiceProcesses) -> Json:
    """CPU seconds and memory of the job below a supervisor, and ``apart`` from it; ``ended_seconds`` are those of what it has waited for."""
    own = os.getpid()
    below = [pid for pid in descendants(supervisor) if pid != own]
    job = [*of_the_job(supervisor, below), *apart.pids]
    return {
        "processes": len(job),
        "cpu_seconds": round(ended_seconds + cpu_seconds(below) + apart.cpu_seconds, 2),
        "cpu_memory_usage_bytes": sum(map(_memory, job)),
    }


def of_the_job(supervisor: int, below: Iterable[int]) -> List[int]:
    """The processes below a supervisor except for its own children, such as the warden."""
    return [pid for pid in below if parent_of(pid) != supervisor]


def host() -> Json:
    """The machine as a whole: counters since it was booted, and memory."""
    memory = _table(Path("/proc/meminfo"))
    received, sent = _network()
    return {
        "cpu_count": os.cpu_count() or 1,
        "cpu_seconds": _busy_seconds(),
        "memory_total_bytes": memory.get("MemTotal", 0) * 1024,
        "memory_available_bytes": memory.get("MemAvailable", 0) * 1024,
        "network_received_bytes": received,
        "network_sent_bytes": sent,
    }


def file_system(path: Path) -> Optional[Json]:
    """How full the file system is that holds a directory, as a user sees it: ``df`` counts the same way."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    available = found.f_bavail * found.f_frsize
    return {"utilization": round(used / max(used + available, 1), 4), "free_bytes": available}


def disk_usage(paths: Iterable[Path], deadline: float) -> Optional[int]:
    """Bytes on disk below directories, each file once; None if that takes beyond a time of the monotonic clock."""
    total = 0
    seen = set()
    for top in paths:
        for directory, _, names in os.walk(str(top)):
            if time.monotonic() > deadline:
                return None
            for name in names:
                try:
                    found = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - there may be millions
                except OSError:
                    continue
                if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * _BLOCK_UNIT
    return total


def variables_of(pids: Iterable[int]) -> Mapping[str, str]:
    """The environment of the first of these processes that shows it."""
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text:
            return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    return {}


def _memory(pid: int) -> int:
    """The process's share of memory: what several have in common is divided among them (PSS), if the kernel says so."""
    try:
        return _table(Path(f"/proc/{pid}/smaps_rollup"))["Pss"] * 1024
    except (OSError, KeyError):
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _table(path: Path) -> Dict[str, int]:
    """``Name: number kB`` lines."""
    found = {}
    for line in path.read_text().splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _busy_seconds() -> float:
    """user, nice, system, irq, softirq, steal of all CPUs: proc(5)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return round((sum(fields[:3]) + sum(fields[5:8])) / _TICKS, 2)


def _network() -> "tuple[int, int]":
    """Bytes in and out of all interfaces but the loopback: proc(5)."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return received, sent


_MIB = 2**20
_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
_ROCM = ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showproductname", "--json")
_CHOOSING = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)


class ToolTimeout(Exception):
    """The program did not answer in time."""


class Gpu(NamedTuple):
    """One GPU by its number; ``utilization`` from 0 to 1, None for what the driver does not tell."""

    number: str
    uuid: str
    name: str
    utilization: Optional[float]
    memory_used: Optional[int]
    memory_total: Optional[int]


def gpus(seconds: float) -> List[Gpu]:
    """Every GPU; none where there is no program to ask. ToolTimeout if it takes longer."""
    text = _ask(_NVIDIA, seconds)
    if text:
        return [gpu for gpu in map(_nvidia, text.splitlines()) if gpu is not None]
    text = _ask(_ROCM, seconds)
    return _rocm(text) if text else []


def visible(found: List[Gpu], variables: Mapping[str, str]) -> List[Gpu]:
    """Those that a process with these variables may use: by index, or by UUID or its beginning."""
    for name in _CHOOSING:
        words = [word.strip() for word in variables.get(name, "").split(",") if word.strip()]
        if words and words != ["all"]:
            return [gpu for gpu in found if any(_named(gpu, word) for word in words)]
    return found


def _named(gpu: Gpu, word: str) -> bool:
    return word == gpu.number if word.isdigit() else gpu.uuid.startswith(word)


def _ask(argv: Tuple[str, ...], seconds: float) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolTimeout(argv[0]) from None
    except OSError:
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _nvidia(line: str) -> Optional[Gpu]:
    """https://docs.nvidia.com/deploy/nvidia-smi: MiB and percent, ``[N/A]`` for what isn't known."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < 6 or not cells[0].isdigit():
        return None
    busy, used, total = (_number(cell) for cell in cells[-3:])
    return Gpu(cells[0], cells[1], ",".join(cells[2:-3]), *_in_units(busy, used, total, _MIB))


def _rocm(text: str) -> List[Gpu]:
    """``rocm-smi --json``: an object a card, values as text in bytes and percent."""
    try:
        cards: Dict[str, Any] = json_of(text)
    except ValueError:
        return []
    found = []
    for name, card in sorted(cards.items()):
        if not name.startswith("card") or not isinstance(card, dict):
            continue
        busy = _number(str(card.get("GPU use (%)")))
        used = _number(str(card.get("VRAM Total Used Memory (B)")))
        total = _number(str(card.get("VRAM Total Memory (B)")))
        series = str(card.get("Card Series", card.get("Card series", "")))
        found.append(Gpu(name[4:], "", series, *_in_units(busy, used, total, 1)))
    return found


def _in_units(
    busy: Optional[float], used: Optional[float], total: Optional[float], unit: int
) -> Tuple[Optional[float], Optional[int], Optional[int]]:
    return (
        None if busy is None else busy / 100,
        None if used is None else int(used * unit),
        None if total is None else int(total * unit),
    )


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None
