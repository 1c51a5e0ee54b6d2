"""Detect settled files and complete checkpoints. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from trainctl.base.checkpoints.ranking import checkpoint_class
from trainctl.base.filesystem.files import list_names, resolve_within
from trainctl.base.protocol.spec import CheckpointStoreSpec
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
    """Times of the last change of each file and the last removal, by this process."""

    saved: SavedCheckpoint
    since: Dict[SavedFile, float]
    removed: float

    @property
    def changed(self) -> float:
        """Time of the last write."""
        return max(self.since.values())

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

    def observe(self, saved: Sequence[SavedCheckpoint], end: Optional[RunEnd]) -> None:
        """Record the checkpoints that exist now, and forget all others."""
        self._observed = {checkpoint.key: self._update(checkpoint, end) for checkpoint in saved}

    def open_files(self, pending: Sequence[SavedCheckpoint]) -> Set[Inode]:
        """Settled files of these checkpoints that a process has open for writing."""
        files = {file.inode for checkpoint in pending for file in self._settled(checkpoint)}
        return open_for_writing(files)

    def settled_files(self, saved: SavedCheckpoint, writing: Set[Inode]) -> List[SavedFile]:
        """Files of a checkpoint that are unchanged for a while and not open for writing."""
        return [file for file in self._settled(saved) if file.inode not in writing]

    def is_due(self, saved: SavedCheckpoint, end: Optional[RunEnd]) -> bool:
        """Check whether a checkpoint is complete: newer one, idle, or orderly end."""
        if end is not None and end.orderly:
            return True
        observed = self._observed[saved.key]
        is_superseded = any(
            other.saved.rank == saved.rank
            and other.saved.name != saved.name
            and (other.changed, other.saved.modified) > (observed.changed, saved.modified)
            and other.kind >= observed.kind
            for other in self._observed.values()
        )
        until = time.monotonic() - (max(0.0, time.time() - end.at) if end else 0.0)
        idle = until - max(observed.changed, observed.removed)
        return idle >= (self._settle_seconds if is_superseded else self._idle_seconds)

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
        if before is None:
            return _ObservedCheckpoint(saved, since, min(since.values()))
        removed = {file.path for file in before.since} - {file.path for file in since}
        return _ObservedCheckpoint(saved, since, now if removed else before.removed)

    def _settled(self, saved: SavedCheckpoint) -> List[SavedFile]:
        now = time.monotonic()
        since = self._observed[saved.key].since
        return [file for file, start in since.items() if now - start >= self._settle_seconds]


_RANK = re.compile(r"rank-(\d+)")
_NESTED = re.compile(r".*checkpoint-\d+(?:-\d+)?")
"""Directories that are checkpoints at any depth. As on Baseten: https://docs.baseten.co/training/concepts/checkpointing"""

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
    """A checkpoint: a directory of a rank, or ``.`` for files next to them.

    ``name`` is the path below the rank. A directory that holds checkpoints, as in ``v0/checkpoint-100``, has its other
    files only.

    ``skipped_links`` counts symlinks that lead out of the job's checkpoint directory or to no file.
    """

    rank: int
    name: str
    directory: Path
    files: Tuple[SavedFile, ...]
    skipped_links: int = 0

    @property
    def key(self) -> CheckpointKey:
        """Rank and name."""
        return self.rank, self.name

    @property
    def top(self) -> Path:
        """Checkpoint directory of its rank; symlinks must not lead out of it."""
        return self.directory if self.name == "." else self.directory.parents[self.name.count("/")]

    @property
    def modified(self) -> int:
        """Last modification of a file, in nanoseconds by the file system's clock."""
        return max((file.modified for file in self.files), default=0)

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return sum(file.size for file in self.files)


def list_saved(directory: Path) -> List[SavedCheckpoint]:
    """List the checkpoints of every rank below a run's directory.

    Ignores symlinks to directories, and names that begin with a dot: trainers rename those when they are complete.
    """
    checkpoints = []
    for rank_name in list_names(directory):
        match = _RANK.fullmatch(rank_name)
        rank = directory / rank_name
        if match is None or rank.is_symlink() or not rank.is_dir():
            continue
        for name in list_names(rank):
            path = rank / name
            if not name.startswith(".") and not path.is_symlink() and path.is_dir():
                names = [name, *(f"{name}/{inner}" for inner in _nested_checkpoints(path))]
                checkpoints += [inspect_checkpoint(rank / one, int(match[1]), one) for one in names]
        checkpoints.append(inspect_checkpoint(rank, int(match[1]), "."))
    return [saved for saved in checkpoints if saved.files]


def inspect_checkpoint(directory: Path, rank: int, name: str) -> SavedCheckpoint:
    """Read a checkpoint's files; symlinks within the job's directory count as files."""
    files, skipped_links = [], 0
    empty = SavedCheckpoint(rank, name, directory, ())
    for path in _paths(directory, loose_only=name == "."):
        try:
            status: Optional[os.stat_result] = path.lstat()
        except FileNotFoundError:
            continue
        linked = status is not None and stat.S_ISLNK(status.st_mode)
        if linked:
            target = resolve_within(path, empty.top)
            status = target.stat() if target else None
        if status is None:
            skipped_links += 1
        elif stat.S_ISREG(status.st_mode):
            relative = path.relative_to(directory).as_posix()
            inode = (status.st_dev, status.st_ino)
            files.append(SavedFile(relative, status.st_size, status.st_mtime_ns, inode, linked))
    return empty._replace(files=tuple(files), skipped_links=skipped_links)


def open_for_writing(files: Set[Inode]) -> Set[Inode]:
    """Select the files that a process visible to this user has open for writing."""
    open_inodes: Set[Inode] = set()
    for pid in all_pids() if files else ():
        for number, inode in _open_files(pid):
            if inode in files and inode not in open_inodes and _writes(pid, number):
                open_inodes.add(inode)
    return open_inodes


def _open_files(pid: int) -> Iterator[Tuple[str, Inode]]:
    try:
        numbers = [path.name for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return
    for number in numbers:
        try:
            status = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116 - not a regular symlink
        except OSError:
            continue
        yield number, (status.st_dev, status.st_ino)


def _writes(pid: int, number: str) -> bool:
    try:
        text = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    except OSError:
        return False
    match = re.search(r"^flags:\s*(\d+)", text, re.MULTILINE)
    return match is not None and int(match[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _nested_checkpoints(directory: Path) -> Iterator[str]:
    """Yield the paths of checkpoints below a directory; a checkpoint holds no others."""
    if _NESTED.fullmatch(directory.name):
        return
    for top, inner, _ in os.walk(str(directory)):
        for name in sorted(filter(_NESTED.fullmatch, inner)):
            inner.remove(name)
            if not name.startswith(".") and not Path(top, name).is_symlink():
                yield Path(top, name).relative_to(directory).as_posix()


def _paths(directory: Path, *, loose_only: bool) -> Iterator[Path]:
    is_whole = _NESTED.fullmatch(directory.name)
    for top, inner, names in os.walk(str(directory)):
        if loose_only:
            inner.clear()
        elif not is_whole:
            inner[:] = [name for name in inner if not _NESTED.fullmatch(name)]
        inner.sort()
        linked = [name for name in inner if Path(top, name).is_symlink()]
        for name in sorted([*names, *linked]):
            yield Path(top, name)
