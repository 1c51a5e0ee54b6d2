"""Files of a training cache: a walk that follows no link, the summary that spares plans the walk, and removing what is old."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Dict, Iterator, NamedTuple, Optional, Set, cast

from trainctl.base.files import read_json, write_json
from trainctl.base.protocol.caches import Held
from trainctl.node.system.layout import Layout
from trainctl.node.training.cache import OURS, short_name

_FEW = 10_000
"""Entries that may be looked at where nobody has time for more."""


class Entry(NamedTuple):
    """One thing in a cache: its path below it, bytes (of a directory, those of all files below it), mtime, and ``st_mode``."""

    path: str
    size: int
    modified: float
    mode: int

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory and no link to one."""
        return stat.S_ISDIR(self.mode)


def entries(cache: Path) -> Iterator[Entry]:
    """Everything below the directory but what is ours, each directory after what it holds.

    What vanishes or may not be read is left out. Memory is that of one directory and its ancestors.
    """
    if not cache.is_dir():
        return
    top = os.path.realpath(str(cache))
    sizes: Dict[str, int] = {}
    for directory, folders, files in os.walk(top, topdown=False):
        below = os.path.relpath(directory, top)
        if below.split("/")[0] == OURS:
            continue
        total = 0
        for name in sorted(files) + sorted(folders):
            path = name if below == os.curdir else f"{below}/{name}"
            if path == OURS:
                continue
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                size = found.st_size if stat.S_ISREG(found.st_mode) else sizes.pop(path, 0)
                total += size
                yield Entry(path, size, found.st_mtime, found.st_mode)
        sizes[below] = total


def measure(cache: Path, most: Optional[int] = None) -> Held:
    """What is there; no more than ``most`` entries are counted."""
    began, size, files = time.time(), 0, 0
    for number, entry in enumerate(entries(cache), 1):
        if most is not None and number > most:
            return {"bytes": size, "files": files, "at": began, "whole": False}
        if not entry.is_directory:
            size += entry.size
            files += 1
    return {"bytes": size, "files": files, "at": began, "whole": True}


def summary(layout: Layout, cache: Path) -> Held:
    """What the newest walk found; where there was none yet, what a short one finds."""
    found = read_json(_summary(layout, cache))
    return (
        cast("Held", found) if isinstance(found, dict) and cache.is_dir() else measure(cache, _FEW)
    )


def summarize(layout: Layout, cache: Path) -> None:
    """Walk the cache and keep what was found; nothing is made where the cache or its node is gone."""
    with contextlib.suppress(OSError):
        if cache.is_dir():
            keep_summary(layout, cache, measure(cache))


def keep_summary(layout: Layout, cache: Path, found: Held) -> None:
    """Keep what a walk found. A full disk, or a node that is gone, is no error."""
    with contextlib.suppress(OSError):
        write_json(_summary(layout, cache), found)


def forget_summary(layout: Layout, cache: Path) -> None:
    """Drop it."""
    with contextlib.suppress(FileNotFoundError):
        _summary(layout, cache).unlink()


def _summary(layout: Layout, cache: Path) -> Path:
    return layout.training / f"{short_name(cache)}.json"


class Clearing:
    """One pass over a cache, from the leaves up; links are not followed.

    ``files`` and ``bytes`` were removed; ``left`` could not be. A hard link that has others frees nothing.
    """

    def __init__(self, cache: Path, before: float, *, dry: bool) -> None:
        self._top = os.path.realpath(str(cache))
        self._before = before
        self._dry = dry
        self.files = self.bytes = self.left = 0

    def run(self) -> None:
        """Remove what was last modified at ``before`` or earlier, then directories that are as old, or were emptied by this."""
        touched: Set[str] = set()
        ours = os.path.join(self._top, OURS)  # noqa: PTH118
        for directory, folders, files in os.walk(self._top, topdown=False):
            if directory == ours or directory.startswith(ours + os.sep):
                continue
            for name in (*files, *folders):
                path = os.path.join(directory, name)  # noqa: PTH118
                if path != ours and self._remove(path, emptied=path in touched):
                    touched.add(directory)

    def _remove(self, path: str, *, emptied: bool) -> bool:
        try:
            found = os.lstat(path)
            old = found.st_mtime <= self._before
            if stat.S_ISDIR(found.st_mode):
                return (old or emptied) and not self._dry and _remove_empty(path)
            if not old:
                return False
            if not self._dry:
                os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        except OSError:
            self.left += 1
            return False
        self.files += 1
        self.bytes += found.st_size if found.st_nlink == 1 and stat.S_ISREG(found.st_mode) else 0
        return True


def _remove_empty(path: str) -> bool:
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError:  # it holds something
        return False
    return True
