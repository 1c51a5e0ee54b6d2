"""Detect settled files and complete checkpoints. See DESIGN.md."""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from trainctl.base.checkpoints.layout import (
    checkpoint_class,
    deciding_files,
    group_paths,
    is_safetensors_temporary,
    parse_step,
    series,
)
from trainctl.base.filesystem.files import list_names, resolve_within
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol.runs import CheckpointStoreSpec
from trainctl.base.system.processes import all_pids
from trainctl.node.checkpoints.metadata import checkpoint_step

DEBOUNCE_SECONDS = 5.0
IDLE_SECONDS = 60.0


class RunEnd(NamedTuple):
    """End of a run: ``orderly`` if not killed; ``at`` in Unix seconds."""

    orderly: bool
    at: float
    record: Mapping[str, Any]


class _ObservedCheckpoint(NamedTuple):
    """Times of the last change of each file, and of deciding files' last change and removal, by this process."""

    saved: SavedCheckpoint
    since: Dict[SavedFile, float]
    changed: float
    removed: float

    @property
    def kind(self) -> int:
        """Its class among checkpoints: logs written next to one don't make it complete."""
        saved = self.saved
        step = checkpoint_step(saved.directory, saved.name, [file.path for file in saved.files])
        return checkpoint_class({"name": saved.name, "step": step})


class CheckpointMonitor:
    """Track since when files are unchanged, by a monotonic clock."""

    def __init__(self, settings: CheckpointStoreSpec) -> None:
        self._settle_seconds = settings.get("debounce_seconds", DEBOUNCE_SECONDS)
        self._idle_seconds = settings.get("idle_seconds", IDLE_SECONDS)
        self._observed: Dict[CheckpointKey, _ObservedCheckpoint] = {}
        self._usual_files: Dict[CheckpointKey, Counter[str]] = {}

    def observe(self, saved: Sequence[SavedCheckpoint], end: Optional[RunEnd]) -> None:
        """Record the checkpoints that exist now, and forget all others.

        The files of those that have a newer one are what the next of the series have when they are complete.
        """
        for checkpoint in saved:
            if checkpoint.key not in self._observed:
                usual = self._usual_files.setdefault(checkpoint.series, Counter())
                for before in self._observed.values():
                    if before.saved.series == checkpoint.series and before.kind == 2:
                        usual |= Counter(series(file.path) for file in before.saved.deciding)
        self._observed = {checkpoint.key: self._update(checkpoint, end) for checkpoint in saved}

    def open_files(self, pending: Sequence[SavedCheckpoint]) -> Set[Inode]:
        """Settled files of these checkpoints that a process visible to this user has open for writing."""
        files = {file.inode for checkpoint in pending for file in self.settled(checkpoint)}
        open_inodes: Set[Inode] = set()
        for pid in all_pids() if files else ():
            numbers: List[str] = []
            with suppress(OSError):  # it ended, or belongs to another user
                numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - every second, for all processes
            for number in numbers:
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116 - not a regular symlink
                    inode = status.st_dev, status.st_ino
                    if inode in files and inode not in open_inodes:
                        text = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
                        match = re.search(r"^flags:\s*(\d+)", text, re.MULTILINE)
                        if match and int(match[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                            open_inodes.add(inode)
        return open_inodes

    def is_due(self, saved: SavedCheckpoint, end: Optional[RunEnd]) -> bool:
        """Check whether a checkpoint is complete.

        A newer one of its series exists, it has the files of those before it, nothing changes, or the run has ended.
        """
        if end is not None and end.orderly:
            return True
        observed = self._observed[saved.key]
        is_superseded = any(
            other.saved.rank == saved.rank
            and other.saved.name != saved.name
            and (other.changed, other.saved.modified) > (observed.changed, saved.modified)
            and other.kind >= observed.kind
            and (observed.kind < 2 or other.saved.series == saved.series)
            for other in self._observed.values()
        )
        usual = self._usual_files.get(saved.series)
        has_usual = usual and not usual - Counter(series(file.path) for file in saved.files)
        until = time.monotonic() - (max(0.0, time.time() - end.at) if end else 0.0)
        idle = until - max(observed.changed, observed.removed)
        return idle >= (self._settle_seconds if is_superseded or has_usual else self._idle_seconds)

    def _update(self, saved: SavedCheckpoint, end: Optional[RunEnd]) -> _ObservedCheckpoint:
        now = time.monotonic()
        before = self._observed.get(saved.key)
        since = {}
        for file in saved.files:
            if before is not None and file in before.since:
                since[file] = before.since[file]
            elif before is None and end is not None:
                # The uploader was dead: use the file's own time.
                since[file] = now - max(0.0, time.time() - file.modified / 1e9)
            else:
                since[file] = now
        changed = max(since[file] for file in saved.deciding)
        if before is None:
            return _ObservedCheckpoint(saved, since, changed, min(since.values()))
        removed = {file.path for file in before.saved.deciding} - {file.path for file in since}
        return _ObservedCheckpoint(saved, since, changed, now if removed else before.removed)

    def settled(self, saved: SavedCheckpoint) -> List[SavedFile]:
        """Files of a checkpoint that are unchanged for a while."""
        now = time.monotonic()
        since = self._observed[saved.key].since
        return [file for file, start in since.items() if now - start >= self._settle_seconds]


_RANK = compile_lazily(r"rank-(\d+)")

CheckpointKey = Tuple[int, str]
"""Rank and name of a checkpoint."""

Inode = Tuple[int, int]
"""Device and inode."""


class SavedFile(NamedTuple):
    """A regular file of a checkpoint; ``linked`` if found through a symlink."""

    path: str
    size: int
    modified: int
    inode: Inode
    linked: bool = False


class SavedCheckpoint(NamedTuple):
    """A checkpoint of a rank: a directory, files of one step, or ``.`` for files next to them.

    ``name`` is its path below ``top``, the directory of the rank; ``folder`` the directory that its files' paths are
    relative to. A directory that holds checkpoints, as in ``v0/checkpoint-100``, has its other files only.

    ``skipped_links`` counts symlinks that lead out of the job's checkpoint directory or to no file.
    """

    rank: int
    name: str
    folder: str
    top: Path
    files: Tuple[SavedFile, ...]
    skipped_links: int = 0

    @property
    def key(self) -> CheckpointKey:
        """Rank and name."""
        return self.rank, self.name

    @property
    def series(self) -> CheckpointKey:
        """Rank and name without its numbers."""
        return self.rank, series(self.name)

    @property
    def directory(self) -> Path:
        """Directory that the paths of its files are relative to."""
        return self.top / self.folder

    @property
    def deciding(self) -> List[SavedFile]:
        """Files that decide when it is complete."""
        paths = set(deciding_files(self.name, [file.path for file in self.files]))
        return [file for file in self.files if file.path in paths]

    @property
    def modified(self) -> int:
        """Last modification of a file that decides, in nanoseconds by the file system's clock."""
        return max((file.modified for file in self.deciding), default=0)

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return sum(file.size for file in self.files)

    @property
    def row(self) -> Dict[str, Any]:
        """What manifests and reports of incomplete checkpoints have in common."""
        return {
            "rank": self.rank,
            "name": self.name,
            "skipped_links": self.skipped_links,
            "created_at": self.modified / 1e9,
        }


def list_saved(directory: Path) -> List[SavedCheckpoint]:
    """List the checkpoints of every rank below a run's directory.

    Ignores symlinks to directories, and names that begin with a dot: trainers rename those when they are complete.
    """
    checkpoints: List[SavedCheckpoint] = []
    for name in list_names(directory):
        match = _RANK.fullmatch(name)
        if (
            match is not None
            and (directory / name).is_dir()
            and not (directory / name).is_symlink()
        ):
            checkpoints += _list_rank(directory / name, int(match[1]))
    return checkpoints


def _list_rank(top: Path, rank: int) -> Iterator[SavedCheckpoint]:
    """Yield the checkpoints of a rank; symlinks within its directory count as files."""
    found = {path.relative_to(top).as_posix(): path for path in _paths(top)}
    files: Dict[Tuple[str, str], List[SavedFile]] = {}
    skipped_links: Counter[Tuple[str, str]] = Counter()
    for path, member in sorted(group_paths(found).items()):
        try:
            status: Optional[os.stat_result] = found[path].lstat()
        except FileNotFoundError:
            continue
        linked = status is not None and stat.S_ISLNK(status.st_mode)
        if linked:
            target = resolve_within(found[path], top)
            status = target.stat() if target else None
        if status is None:
            skipped_links[member] += 1
        elif stat.S_ISREG(status.st_mode):
            inner = path[len(member[1]) + 1 if member[1] else 0 :]
            inode = (status.st_dev, status.st_ino)
            file = SavedFile(inner, status.st_size, status.st_mtime_ns, inode, linked)
            files.setdefault(member, []).append(file)
    for member, kept in files.items():
        yield SavedCheckpoint(rank, *member, top, tuple(kept), skipped_links[member])


def _raise_disk_error(error: OSError) -> None:
    """Raise errors of the disk: the files of a directory that can't be read would count as removed."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError, PermissionError)):
        raise error


def _paths(rank: Path) -> Iterator[Path]:
    for top, inner, names in os.walk(str(rank), onerror=_raise_disk_error):
        is_top = Path(top) == rank
        inner[:] = sorted(
            name
            for name in inner
            if not (name.startswith(".") and (is_top or parse_step(name) is not None))
        )
        linked = [name for name in inner if not is_top and Path(top, name).is_symlink()]
        for name in sorted([*names, *linked]):
            if not is_safetensors_temporary(name):
                yield Path(top, name)
