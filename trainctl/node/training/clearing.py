"""Removing what is old from a training cache."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Set

from trainctl.node.training.cache import OURS


class Clearing:
    """One pass over a cache, from the leaves up, by descriptors of directories: no link leads it anywhere else.

    ``files`` and ``bytes`` went; ``left`` could not be removed. A hard link that has others frees nothing.
    """

    def __init__(self, cache: Path, before: float, *, dry: bool) -> None:
        self._top = os.path.realpath(str(cache))
        self._before = before
        self._dry = dry
        self.files = self.bytes = self.left = 0

    def run(self) -> None:
        """Remove what was last modified at ``before`` or earlier, then directories that are as old, or were emptied by this."""
        touched: Set[str] = set()
        for directory, folders, files, descriptor in os.fwalk(self._top, topdown=False):
            below = os.path.relpath(directory, self._top)
            if below.split("/")[0] == OURS:
                continue
            for name in (*files, *folders):
                path = os.path.normpath(os.path.join(below, name))  # noqa: PTH118
                if path != OURS and self._goes(name, descriptor, path in touched):
                    touched.add(below)
            touched.difference_update(
                [os.path.normpath(os.path.join(below, name)) for name in folders]  # noqa: PTH118
            )

    def _goes(self, name: str, descriptor: int, touched: bool) -> bool:
        try:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            old = found.st_mtime <= self._before
            if stat.S_ISDIR(found.st_mode):
                return (old or touched) and self._remove_directory(name, descriptor)
            if not old:
                return False
            if not self._dry:
                os.unlink(name, dir_fd=descriptor)
        except FileNotFoundError:
            return False
        except OSError:
            self.left += 1
            return False
        self.files += 1
        self.bytes += found.st_size if found.st_nlink == 1 and stat.S_ISREG(found.st_mode) else 0
        return True

    def _remove_directory(self, name: str, descriptor: int) -> bool:
        """Only an empty one; that it isn't is no error."""
        if self._dry:
            return False
        try:
            os.rmdir(name, dir_fd=descriptor)
        except OSError:
            return False
        return True
