"""Training caches and the files in them. See DESIGN.md, "Training caches"."""

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
from trainctl.base.filesystem.archives import is_inside
from trainctl.base.filesystem.files import (
    create_exclusive,
    list_names,
    make_directory,
    read_json,
    remove_tree,
    write_json,
)
from trainctl.base.lease import FileLease
from trainctl.base.protocol.training import TrainingCacheUsage
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout

METADATA_DIRECTORY = ".trainctl-cache"
"""Directory in a cache that records its creator, users and preparation."""


class TrainingCache:
    """A cache directory of this node or of a shared file system."""

    def __init__(self, layout: Layout, directory: Any) -> None:
        self.directory = names.check_absolute(directory, "directory")
        self._layout = layout
        self._references = CacheReferences(layout)
        if is_inside(layout.root, self.directory):
            raise Failure("request", f"{self.directory} contains trainctl's root directory")

    def make(self, lineage: str, owner: str) -> None:
        """Create the directory if missing, and record the owner, a resource."""
        user = _user_key(lineage, owner)
        self._references.refer_cache(lineage, self._file(owner), str(self.directory))
        existed = self.directory.exists()
        make_directory(self._users)
        if not existed:
            create_exclusive(self._creation_marker, b"")
        (self._users / user).touch(0o600)

    def release(self, lineage: str, owner: str = "") -> None:
        """Release it for one owner, or for all of the lineage."""
        self._references.drop_cache(lineage, self._file(owner))
        for user in list_names(self._users):
            if user == _user_key(lineage, owner) or (
                not owner and user.startswith(_user_key(lineage, ""))
            ):
                with contextlib.suppress(FileNotFoundError):
                    (self._users / user).unlink()

    def others(self, lineage: str, owner: str) -> List[str]:
        """Other users of the cache, as ``LINEAGE+OWNER``."""
        users = {
            *list_names(self._users),
            *self._references.cache_users(short_name(self.directory)),
        }
        return sorted(users - {_user_key(lineage, owner)})

    @property
    def is_owned(self) -> bool:
        """Check that trainctl created it, or that it is below the root directory."""
        return is_inside(self.directory, self._layout.root) or self._creation_marker.exists()

    def remove(self) -> int:
        """Remove it, or only trainctl's files if trainctl didn't create it."""
        if self.is_owned:
            return remove_tree(self.directory)
        remove_tree(self.directory / METADATA_DIRECTORY)
        return 0

    def is_prepared(self, digest: str) -> bool:
        """Check that commands with this digest have prepared its current content."""
        return self._preparation(digest).exists()

    def mark_prepared(self, digest: str, key: str, name: str) -> None:
        """Record that a run prepared it; ``name`` describes the run."""
        make_directory(self._preparation(digest).parent)
        create_exclusive(self._preparation(digest), json.dumps({"run": key, "name": name}).encode())

    def prepared_by(self, digest: str) -> Dict[str, Any]:
        """``run`` (key) and ``name`` of the run that prepared it; empty if unknown."""
        return read_json(self._preparation(digest)) or {}

    def invalidate_preparation(self) -> None:
        """Require a new preparation, after files were removed."""
        remove_tree(self.directory / METADATA_DIRECTORY / "prepared")

    def _file(self, owner: str) -> str:
        return f"{short_name(self.directory)}-{owner}" if owner else short_name(self.directory)

    def _preparation(self, digest: str) -> Path:
        return self.directory / METADATA_DIRECTORY / "prepared" / digest

    @property
    def _users(self) -> Path:
        return self.directory / METADATA_DIRECTORY / "users"

    @property
    def _creation_marker(self) -> Path:
        return self.directory / METADATA_DIRECTORY / "made"


def content_lock(layout: Layout, directory: Path) -> FileLease:
    """Lock for preparing and clearing a cache on this node."""
    return FileLease(make_directory(layout.training) / f"{short_name(directory)}.lock")


def short_name(directory: Path) -> str:
    """File name for a cache's directory."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _user_key(lineage: str, owner: str) -> str:
    return f"{lineage}+{owner}"


_MAX_QUICK_ENTRIES = 10_000
"""Entries counted before the first complete walk."""


class TrainingCacheEntry(NamedTuple):
    """An entry of a cache; a directory's size is that of all files below."""

    path: str
    size: int
    modified: float
    mode: int

    @property
    def is_directory(self) -> bool:
        """Check for a directory, not a symlink to one."""
        return stat.S_ISDIR(self.mode)


def walk_entries(cache: Path) -> Iterator[TrainingCacheEntry]:
    """Walk all entries except trainctl's own, directories after their content.

    Skips entries that vanish or are unreadable. Uses memory for one directory and its ancestors only.
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
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                size = status.st_size if stat.S_ISREG(status.st_mode) else sizes.pop(path, 0)
                total += size
                yield TrainingCacheEntry(path, size, status.st_mtime, status.st_mode)
        sizes[below] = total


def measure_cache(cache: Path, max_entries: Optional[int] = None) -> TrainingCacheUsage:
    """Count files and bytes of at most ``max_entries`` entries."""
    began, size, files = time.time(), 0, 0
    for number, entry in enumerate(walk_entries(cache), 1):
        if max_entries is not None and number > max_entries:
            return {"bytes": size, "files": files, "at": began, "whole": False}
        if not entry.is_directory:
            size += entry.size
            files += 1
    return {"bytes": size, "files": files, "at": began, "whole": True}


def cache_summary(layout: Layout, cache: Path) -> TrainingCacheUsage:
    """Usage by the last complete walk; before the first one, by a short walk."""
    usage = read_json(_summary(layout, cache))
    if usage and cache.is_dir():
        return cast("TrainingCacheUsage", usage)
    return measure_cache(cache, _MAX_QUICK_ENTRIES)


def update_summary(layout: Layout, cache: Path) -> None:
    """Walk the cache and store its usage; does nothing if the cache is missing."""
    with contextlib.suppress(OSError):
        if cache.is_dir():
            store_summary(layout, cache, measure_cache(cache))


def store_summary(layout: Layout, cache: Path, usage: TrainingCacheUsage) -> None:
    """Store a cache's usage; ignores errors such as a full disk."""
    with contextlib.suppress(OSError):
        write_json(_summary(layout, cache), usage)


def remove_summary(layout: Layout, cache: Path) -> None:
    """Remove the stored usage."""
    with contextlib.suppress(FileNotFoundError):
        _summary(layout, cache).unlink()


def _summary(layout: Layout, cache: Path) -> Path:
    return layout.training / f"{short_name(cache)}.json"


class CacheCleaner:
    """Remove old files of a cache bottom-up, without following symlinks.

    ``files`` and ``bytes`` were removed; ``remaining`` counts failures. Removing a file with other hard links frees nothing.
    """

    def __init__(self, cache: Path, before: float, *, dry: bool) -> None:
        self._top = os.path.realpath(str(cache))
        self._before = before
        self._dry = dry
        self.files = self.bytes = self.remaining = 0

    def run(self) -> None:
        """Remove files modified until ``before``, then old and emptied directories."""
        touched: Set[str] = set()
        metadata = os.path.join(self._top, METADATA_DIRECTORY)  # noqa: PTH118
        for directory, folders, files in os.walk(self._top, topdown=False):
            if directory == metadata or directory.startswith(metadata + os.sep):
                continue
            for name in (*files, *folders):
                path = os.path.join(directory, name)  # noqa: PTH118
                if path != metadata and self._remove(path, emptied=path in touched):
                    touched.add(directory)

    def _remove(self, path: str, *, emptied: bool) -> bool:
        try:
            status = os.lstat(path)
            old = status.st_mtime <= self._before
            if stat.S_ISDIR(status.st_mode):
                return (old or emptied) and not self._dry and _remove_empty(path)
            if not old:
                return False
            if not self._dry:
                os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        except OSError:
            self.remaining += 1
            return False
        self.files += 1
        self.bytes += status.st_size if status.st_nlink == 1 and stat.S_ISREG(status.st_mode) else 0
        return True


def _remove_empty(path: str) -> bool:
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError:  # not empty
        return False
    return True
