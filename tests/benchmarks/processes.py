"""What processes take while something is measured, by kind, as ``/proc`` tells it ten times a second."""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_EVERY_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass
class Taken:
    """Seconds of processor time of all of a kind, and megabytes of the largest."""

    cpu: float = 0.0
    peak_mb: float = 0.0


class Watched:
    """What descends from some processes; ``kind_of`` tells its kind, by the process it descends from and the name of its program."""

    def __init__(self, roots: set[int], kind_of: Callable[[int, str], str]) -> None:
        self._roots = roots
        self._kind_of = kind_of
        self._seen: dict[int, tuple[str, Taken]] = {}
        self._over = threading.Event()
        self._before = {pid: cpu for pid, _, _, cpu in self._below()}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, Taken]:
        """What was taken since the beginning, by kind."""
        self._over.set()
        self._thread.join()
        result: dict[str, Taken] = defaultdict(Taken)
        for pid, (kind, taken) in self._seen.items():
            result[kind].cpu += taken.cpu - self._before.get(pid, 0.0)
            result[kind].peak_mb = max(result[kind].peak_mb, taken.peak_mb)
        return result

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            for pid, root, name, cpu in self._below():
                if peak := _peak_mb(pid):
                    self._seen[pid] = (self._kind_of(root, name), Taken(cpu, peak))

    def _below(self) -> list[tuple[int, int, str, float]]:
        """Process, the root it descends from, name of its program, and seconds of processor time."""
        all_of_them = {int(path.name): _stat(path) for path in Path("/proc").glob("[0-9]*")}
        values = []
        for pid, (_, name, cpu) in all_of_them.items():
            above = pid
            while above not in self._roots and above in all_of_them:
                above = all_of_them[above][0]
            if above in self._roots:
                values.append((pid, above, name, cpu))
        return values


def _stat(place: Path) -> tuple[int, str, float]:
    """Parent, name and processor time."""
    try:
        name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return 0, "", 0.0
    words = rest.split()
    return int(words[1]), name, (int(words[11]) + int(words[12])) / _TICKS


def _peak_mb(pid: int) -> float:
    try:
        match = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(match[1]) * 1024 / 1e6 if match else 0.0
