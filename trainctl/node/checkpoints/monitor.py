"""The checkpoints in a job's directory: which files are finished, and which checkpoints complete. See DESIGN.md, "Checkpoints"."""

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
    """How a run ended: ``orderly`` if not killed; ``at`` in Unix seconds; ``record`` for run.json."""

    orderly: bool
    at: float
    record: Mapping[str, Any]


class _ObservedCheckpoint(NamedTuple):
    """A checkpoint with the times, by this process's clock, since when each file is as it is and when files disappeared last."""

    saved: SavedCheckpoint
    since: Dict[SavedFile, float]
    removed: float

    @property
    def changed(self) -> float:
        """When a file was last written."""
        return max(self.since.values())

    @property
    def kind(self) -> int:
        """Its rank among others: logs written beside a checkpoint don't say that it is finished."""
        one = self.saved
        step = checkpoint_step(one.directory, one.name, [file.path for file in one.files])
        return checkpoint_class({"name": one.name, "step": step})


class CheckpointMonitor:
    """Remembers since when each file is as it is, by a clock that neither jobs nor people set."""

    def __init__(self, settings: CheckpointStoreSpec) -> None:
        self._settle = settings.get("debounce_seconds", DEBOUNCE_SECONDS)
        self._quiet = settings.get("idle_seconds", IDLE_SECONDS)
        self._seen: Dict[CheckpointKey, _ObservedCheckpoint] = {}

    def look(self, saved: Sequence[SavedCheckpoint], end: Optional[RunEnd]) -> None:
        """Note all checkpoints that exist now, and forget others."""
        self._seen = {one.place: self._note(one, end) for one in saved}

    def open_files(self, pending: Sequence[SavedCheckpoint]) -> Set[Inode]:
        """The files of these checkpoints that haven't changed for a while and are still open for writing."""
        return open_for_writing({file.inode for one in pending for file in self._settled(one)})

    def finished(self, one: SavedCheckpoint, writing: Set[Inode]) -> List[SavedFile]:
        """The files of a checkpoint that haven't changed for a while, and aren't open for writing."""
        return [file for file in self._settled(one) if file.inode not in writing]

    def due(self, one: SavedCheckpoint, end: Optional[RunEnd]) -> bool:
        """Whether nothing more is expected: a newer one of its kind exists, it was quiet for long, or the run ended orderly."""
        if end is not None and end.orderly:
            return True
        seen = self._seen[one.place]
        newer = any(
            other.saved.rank == one.rank
            and other.saved.name != one.name
            and (other.changed, other.saved.modified) > (seen.changed, one.modified)
            and other.kind >= seen.kind
            for other in self._seen.values()
        )
        until = time.monotonic() - (max(0.0, time.time() - end.at) if end else 0.0)
        quiet = until - max(seen.changed, seen.removed)
        return quiet >= (self._settle if newer else self._quiet)

    def _note(self, one: SavedCheckpoint, end: Optional[RunEnd]) -> _ObservedCheckpoint:
        now = time.monotonic()
        known = self._seen.get(one.place)
        since = {}
        for file in one.files:
            if known is not None and file in known.since:
                since[file] = known.since[file]
            elif (
                known is None and end is not None
            ):  # the uploader was dead: use the file's own time
                since[file] = now - max(0.0, time.time() - file.modified / 1e9)
            else:
                since[file] = now
        if known is None:
            return _ObservedCheckpoint(one, since, min(since.values()))
        fewer = {file.path for file in known.since} - {file.path for file in since}
        return _ObservedCheckpoint(one, since, now if fewer else known.removed)

    def _settled(self, one: SavedCheckpoint) -> List[SavedFile]:
        now = time.monotonic()
        since = self._seen[one.place].since
        return [file for file, began in since.items() if now - began >= self._settle]


_RANK = re.compile(r"rank-(\d+)")

CheckpointKey = Tuple[int, str]
"""Rank and name of a checkpoint."""

Inode = Tuple[int, int]
"""Device and inode."""


class SavedFile(NamedTuple):
    """A regular file of a checkpoint. ``linked``: it was found through a link elsewhere in the job's directory."""

    path: str
    size: int
    modified: int
    inode: Inode
    linked: bool = False


class SavedCheckpoint(NamedTuple):
    """One checkpoint: a directory of a rank, or ``.`` for the loose files beside them.

    ``skipped_links`` counts links in it that lead to no file of the job's checkpoint directory.
    """

    rank: int
    name: str
    directory: Path
    files: Tuple[SavedFile, ...]
    skipped_links: int = 0

    @property
    def place(self) -> CheckpointKey:
        """Rank and name."""
        return self.rank, self.name

    @property
    def top(self) -> Path:
        """The checkpoint directory of its rank, which its links don't leave."""
        return self.directory if self.name == "." else self.directory.parent

    @property
    def modified(self) -> int:
        """When it was last written to, in nanoseconds, by the clock of its file system."""
        return max((file.modified for file in self.files), default=0)

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)


def list_saved(directory: Path) -> List[SavedCheckpoint]:
    """The checkpoints of every rank below a run's directory.

    Directories that are links are ignored, and so are those whose name begins with a dot: trainers rename these when they are done.
    """
    found = []
    for rank_name in list_names(directory):
        match = _RANK.fullmatch(rank_name)
        rank = directory / rank_name
        if match is None or rank.is_symlink() or not rank.is_dir():
            continue
        for name in list_names(rank):
            path = rank / name
            if not name.startswith(".") and not path.is_symlink() and path.is_dir():
                found.append(inspect_checkpoint(path, int(match[1]), name))
        found.append(inspect_checkpoint(rank, int(match[1]), "."))
    return [saved for saved in found if saved.files]


def inspect_checkpoint(directory: Path, rank: int, name: str) -> SavedCheckpoint:
    """One checkpoint as it is now; a link in it counts as the file that it leads to, if that is the job's too."""
    files, skipped_links = [], 0
    empty = SavedCheckpoint(rank, name, directory, ())
    for path in _paths(directory, loose_only=name == "."):
        try:
            found: Optional[os.stat_result] = path.lstat()
        except FileNotFoundError:
            continue
        linked = found is not None and stat.S_ISLNK(found.st_mode)
        if linked:
            target = resolve_within(path, empty.top)
            found = target.stat() if target else None
        if found is None:
            skipped_links += 1
        elif stat.S_ISREG(found.st_mode):
            relative = path.relative_to(directory).as_posix()
            inode = (found.st_dev, found.st_ino)
            files.append(SavedFile(relative, found.st_size, found.st_mtime_ns, inode, linked))
    return empty._replace(files=tuple(files), skipped_links=skipped_links)


def open_for_writing(files: Set[Inode]) -> Set[Inode]:
    """Those of the files that some process, which this one may inspect, has open for writing."""
    found: Set[Inode] = set()
    for pid in all_pids() if files else ():
        for number, inode in _open_files(pid):
            if inode in files and inode not in found and _writes(pid, number):
                found.add(inode)
    return found


def _open_files(pid: int) -> Iterator[Tuple[str, Inode]]:
    try:
        numbers = [path.name for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return
    for number in numbers:
        try:
            status = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116 - follows what is no path
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


def _paths(directory: Path, *, loose_only: bool) -> Iterator[Path]:
    for top, inner, names in os.walk(str(directory)):
        if loose_only:
            inner.clear()
        inner.sort()
        linked = [name for name in inner if Path(top, name).is_symlink()]
        for name in sorted([*names, *linked]):
            yield Path(top, name)
