"""A disk that keeps what was synced and nothing else, by which a test sees what a power cut would leave at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class SyncedDisk:
    """What survives: of a file what it held at its last fsync, of a name that something was moved to that it is there, if its directory was synced
    since, and so was, for each directory of the way to it that was made, the one above that.

    ``before`` is told of each move to a place below ``root`` before it is made.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[Path, Path], None] = lambda source, target: None
        self._root = root
        self._held: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._moved: set[Path] = set()
        self._made: set[Path] = set()
        patch.setattr(os, "mkdir", self._makes(os.mkdir))
        patch.setattr(os, "fsync", self._synced(os.fsync))
        for name in ("rename", "replace", "link"):
            patch.setattr(os, name, self._moves(getattr(os, name)))

    def lost(self, *kinds: str) -> list[str]:
        """Of what was moved to those directories and is there, what would be without its name, or torn."""
        return sorted(
            str(path.relative_to(self._root))
            for path in self._moved
            if path.exists() and path.relative_to(self._root).parts[0] in kinds
            if not (self._is_reached(path) and self.is_whole(path))
        )

    def is_whole(self, path: Path) -> bool:
        """Whether a file, or each of a directory, would be as it is now."""
        if path.is_dir():
            return all(self._is_named(each) and self.is_whole(each) for each in path.iterdir())
        return self._held.get(path.stat().st_ino) == path.read_bytes()

    def _is_reached(self, path: Path) -> bool:
        above = path.parent
        return self._is_named(path) and (above not in self._made or self._is_reached(above))

    def _is_named(self, path: Path) -> bool:
        names = self._names.get(path.parent.stat().st_ino, {})
        return names.get(path.name) == path.stat().st_ino

    def _synced(self, fsync: Callable[[int], None]) -> Callable[[int], None]:
        def wrapped(descriptor: int) -> None:
            fsync(descriptor)
            place, number = Path(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino
            if place.is_dir():
                self._names[number] = dict(_entries(place))
            else:
                self._held[number] = place.read_bytes()

        return wrapped

    def _makes(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        def wrapped(path: os.PathLike[str], *mode: int, dir_fd: int | None = None) -> None:
            mkdir(path, *mode, dir_fd=dir_fd)
            self._made.add(_whole(path, dir_fd))

        return wrapped

    def _moves(self, call: Callable[..., None]) -> Callable[..., None]:
        def wrapped(source: os.PathLike[str], target: os.PathLike[str], **more: object) -> None:
            here = _whole(source, more.get("src_dir_fd"))
            there = _whole(target, more.get("dst_dir_fd"))
            if there.is_relative_to(self._root):
                self.before(here, there)
                self._moved.add(there)
            for path in (here, there):
                self._names.get(path.parent.stat().st_ino, {}).pop(path.name, None)
            call(source, target, **more)

        return wrapped


def _whole(path: os.PathLike[str], within: object) -> Path:
    """A path of which an open directory may be the beginning."""
    return Path(path) if within is None else Path(f"/proc/self/fd/{within}").readlink() / path


def _entries(directory: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as result:
        for item in result:
            yield item.name, item.inode()
