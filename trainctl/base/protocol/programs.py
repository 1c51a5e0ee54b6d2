"""Programs of other versions, as they are kept on this node: those that nobody uses any more go when a new one comes."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Dict, Iterator, List, Set

_IDLE_SECONDS = 86_400.0
"""A program that was called within a day is somebody's: of another version of trainctl, whose command may be under way between two calls."""

_OF_A_PROGRAM = re.compile(r"([0-9a-f]{64})[.-]")
_ARGUMENTS = re.compile(rb"\0([^\0]*)\0([0-9a-f]{64})(?=\0)")


def remove_unused(folder: Path, mine: str) -> None:
    """Remove programs, their bytecode and what killed installations left, but for ``mine`` and those that processes run or called within a day.

    A process has its program's path and digest among its arguments, and may start another with them for as long as it lives.
    """
    kept: Dict[str, List[Path]] = {}
    for path in folder.iterdir():
        found = _OF_A_PROGRAM.match(path.name)
        if found and found[1] != mine:
            kept.setdefault(found[1], []).append(path)
    idle = {digest for digest, paths in kept.items() if _is_idle(paths)}
    running = _running(folder) if idle else set()
    for digest in idle - running:
        for path in kept[digest] if _is_idle(kept[digest]) else ():
            with contextlib.suppress(OSError):
                path.unlink()


def _is_idle(paths: List[Path]) -> bool:
    """Whether none of the files was touched within a day, as one is by every call."""
    since = time.time() - _IDLE_SECONDS
    return all(touched < since for touched in _times(paths))


def _times(paths: List[Path]) -> Iterator[float]:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path.stat().st_mtime


def _running(folder: Path) -> Set[str]:
    """The programs of all processes of this machine that may have them from here."""
    found: Set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for path, digest in _ARGUMENTS.findall((process / "cmdline").read_bytes()):
                if _may_be_in(folder, process, Path(os.fsdecode(path)).parent):
                    found.add(digest.decode())
    return found


def _may_be_in(folder: Path, process: Path, named: Path) -> bool:
    """Whether what a process calls so is that directory, whatever is mounted where it runs; also where nobody may look, as into another user's."""
    if not named.is_absolute():
        return False
    try:
        return (process / "root" / named.relative_to("/")).samefile(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
