"""Training caches: read-write directories that states share, and the files in them. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, cast

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import (
    create_exclusive,
    list_names,
    make_directory,
    read_json,
    remove_tree,
    write_json,
)
from trainctl.base.lease import FileLease
from trainctl.base.protocol.caches import TrainingCacheUsage
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, is_inside

METADATA_DIRECTORY = ".trainctl-cache"
"""The directory in a cache that tells who made it, who refers to it and what it was prepared with."""


class TrainingCache:
    """One directory of a ROOT's node, or one that many nodes see."""

    def __init__(self, layout: Layout, directory: Any) -> None:
        self.directory = names.check_absolute(directory, "directory")
        self._layout = layout
        self._references = CacheReferences(layout)
        if is_inside(layout.root, self.directory):
            raise Failure("request", f"{self.directory} holds more than a training cache")

    def make(self, lineage: str, owner: str) -> None:
        """Make the directory, or find it; from now on it is kept for the owner: a resource of the lineage's state."""
        user = _user_key(lineage, owner)
        self._references.refer_cache(lineage, self._file(owner), str(self.directory))
        existed = self.directory.exists()
        make_directory(self._users)
        if not existed:
            create_exclusive(self._made, b"")
        (self._users / user).touch(0o600)

    def release(self, lineage: str, owner: str = "") -> None:
        """Let go of it, in the name of the owner, or of all the lineage's."""
        self._references.drop_cache(lineage, self._file(owner))
        for user in list_names(self._users):
            if user == _user_key(lineage, owner) or (
                not owner and user.startswith(_user_key(lineage, ""))
            ):
                with contextlib.suppress(FileNotFoundError):
                    (self._users / user).unlink()

    def others(self, lineage: str, owner: str) -> List[str]:
        """Who but the owner refers to it, as ``LINEAGE+OWNER``."""
        users = {
            *list_names(self._users),
            *self._references.cache_users(short_name(self.directory)),
        }
        return sorted(users - {_user_key(lineage, owner)})

    @property
    def ours(self) -> bool:
        """Whether it may be removed: it was made here, or lies where only we make things."""
        return is_inside(self.directory, self._layout.root) or self._made.exists()

    def remove(self) -> int:
        """Remove it with all it holds, or of a directory that was there before us what is ours; the bytes freed."""
        if self.ours:
            return remove_tree(self.directory)
        remove_tree(self.directory / METADATA_DIRECTORY)
        return 0

    def prepared(self, digest: str) -> bool:
        """Whether commands with this digest have prepared it as it is now."""
        return self._prepared(digest).exists()

    def mark_prepared(self, digest: str, key: str, name: str) -> None:
        """Say so, and by which run."""
        make_directory(self._prepared(digest).parent)
        create_exclusive(self._prepared(digest), json.dumps({"run": key, "name": name}).encode())

    def prepared_by(self, digest: str) -> Dict[str, Any]:
        """The ``run`` that did, by its key, and its ``name`` for people; empty if unknown."""
        return read_json(self._prepared(digest)) or {}

    def invalidate_preparation(self) -> None:
        """Something of it is gone: what prepared it has to do so again."""
        remove_tree(self.directory / METADATA_DIRECTORY / "prepared")

    def _file(self, owner: str) -> str:
        return f"{short_name(self.directory)}-{owner}" if owner else short_name(self.directory)

    def _prepared(self, digest: str) -> Path:
        return self.directory / METADATA_DIRECTORY / "prepared" / digest

    @property
    def _users(self) -> Path:
        return self.directory / METADATA_DIRECTORY / "users"

    @property
    def _made(self) -> Path:
        return self.directory / METADATA_DIRECTORY / "made"


def content_lock(layout: Layout, directory: Path) -> FileLease:
    """The lock under which a cache is prepared or cleared on this node."""
    return FileLease(make_directory(layout.training) / f"{short_name(directory)}.lock")


def short_name(directory: Path) -> str:
    """A file name for a cache's directory."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _user_key(lineage: str, owner: str) -> str:
    return f"{lineage}+{owner}"


_MAX_QUICK_ENTRIES = 10_000
"""Most entries that a quick walk counts."""


class TrainingCacheEntry(NamedTuple):
    """One thing in a cache: its path below it, bytes (of a directory, those of all files below it), mtime, and ``st_mode``."""

    path: str
    size: int
    modified: float
    mode: int

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory and no link to one."""
        return stat.S_ISDIR(self.mode)


def walk_entries(cache: Path) -> Iterator[TrainingCacheEntry]:
    """Everything below the directory but what is ours, each directory after what it holds.

    What vanishes or may not be read is left out. Memory is that of one directory and its ancestors.
    """
    if not cache.is_dir():
        return
    top = os.path.realpath(str(cache))
    sizes: Dict[str, int] = {}
    for directory, folders, files in os.walk(top, topdown=False):
        below = os.path.relpath(directory, top)
        if below.split("/")[0] == METADATA_DIRECTORY:
            continue
        total = 0
        for name in sorted(files) + sorted(folders):
            path = name if below == os.curdir else f"{below}/{name}"
            if path == METADATA_DIRECTORY:
                continue
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                size = found.st_size if stat.S_ISREG(found.st_mode) else sizes.pop(path, 0)
                total += size
                yield TrainingCacheEntry(path, size, found.st_mtime, found.st_mode)
        sizes[below] = total


def measure_cache(cache: Path, most: Optional[int] = None) -> TrainingCacheUsage:
    """What is there; no more than ``most`` entries are counted."""
    began, size, files = time.time(), 0, 0
    for number, entry in enumerate(walk_entries(cache), 1):
        if most is not None and number > most:
            return {"bytes": size, "files": files, "at": began, "whole": False}
        if not entry.is_directory:
            size += entry.size
            files += 1
    return {"bytes": size, "files": files, "at": began, "whole": True}


def cache_summary(layout: Layout, cache: Path) -> TrainingCacheUsage:
    """What the newest walk found; where there was none yet, what a short one finds."""
    found = read_json(_summary(layout, cache))
    return (
        cast("TrainingCacheUsage", found)
        if found and cache.is_dir()
        else measure_cache(cache, _MAX_QUICK_ENTRIES)
    )


def update_summary(layout: Layout, cache: Path) -> None:
    """Walk the cache and keep what was found; nothing is made where the cache or its node is gone."""
    with contextlib.suppress(OSError):
        if cache.is_dir():
            keep_summary(layout, cache, measure_cache(cache))


def keep_summary(layout: Layout, cache: Path, found: TrainingCacheUsage) -> None:
    """Keep what a walk found. A full disk, or a node that is gone, is no error."""
    with contextlib.suppress(OSError):
        write_json(_summary(layout, cache), found)


def forget_summary(layout: Layout, cache: Path) -> None:
    """Drop it."""
    with contextlib.suppress(FileNotFoundError):
        _summary(layout, cache).unlink()


def _summary(layout: Layout, cache: Path) -> Path:
    return layout.training / f"{short_name(cache)}.json"


class CacheCleaner:
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
        ours = os.path.join(self._top, METADATA_DIRECTORY)  # noqa: PTH118
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
