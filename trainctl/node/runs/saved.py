"""What a job has saved so far: its checkpoint directories as they are now, and who still writes to them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from trainctl.base.files import names_in, real_file
from trainctl.base.processes import all_pids

_RANK = re.compile(r"rank-(\d+)")


class File(NamedTuple):
    """A regular file of a checkpoint; one that is rewritten is another one."""

    path: str
    size: int
    modified: int
    inode: int
    device: int
    linked: bool = False
    """Whether a link leads to it, from another name of the job's checkpoint directory."""


class Saved(NamedTuple):
    """One checkpoint: a directory of a rank's, or ``.`` for the loose files beside them."""

    rank: int
    name: str
    directory: Path
    files: Tuple[File, ...]
    left_out: int = 0
    """How many links in it lead to no file of the job's checkpoint directory."""

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
        """Of all its files."""
        return sum(file.size for file in self.files)


def saved_in(directory: Path) -> List[Saved]:
    """The checkpoints of every rank below a run's directory. Directories that are links are none, and not
    followed; those whose name begins with a dot are ones that trainers rename when they are done."""
    found = []
    for rank_name in names_in(directory):
        match = _RANK.fullmatch(rank_name)
        rank = directory / rank_name
        if match is None or rank.is_symlink() or not rank.is_dir():
            continue
        for name in names_in(rank):
            path = rank / name
            if not name.startswith(".") and not path.is_symlink() and path.is_dir():
                found.append(look(path, int(match[1]), name))
        found.append(look(rank, int(match[1]), "."))
    return [one for one in found if one.files]


def look(directory: Path, rank: int, name: str) -> Saved:
    """One checkpoint as it is now; a link in it is the file that it leads to, as long as that is of the same job."""
    files, left_out = [], 0
    empty = Saved(rank, name, directory, ())
    for path in _paths(directory, loose_only=name == "."):
        try:
            found: Optional[os.stat_result] = path.lstat()
        except FileNotFoundError:
            continue
        linked = found is not None and stat.S_ISLNK(found.st_mode)
        if linked:
            target = real_file(path, empty.top)
            found = target.stat() if target else None
        if found is None:
            left_out += 1
        elif stat.S_ISREG(found.st_mode):
            relative = path.relative_to(directory).as_posix()
            identity = (found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev)
            files.append(File(relative, *identity, linked))
    return empty._replace(files=tuple(files), left_out=left_out)


def linked_into(saved: Sequence[Saved], going: Set[Tuple[int, str]]) -> Set[Tuple[int, str]]:
    """Of checkpoints that are to go, by rank and name, those in which others that stay have files by links."""
    needed: Set[Tuple[int, str]] = set()
    while True:
        stay = [one for one in saved if (one.rank, one.name) not in going - needed]
        meant = {(file.device, file.inode) for one in stay for file in one.files if file.linked}
        more = {
            (one.rank, one.name)
            for one in saved
            if one not in stay and any((file.device, file.inode) in meant for file in one.files)
        }
        if not more:
            return needed
        needed |= more


def being_written(files: Set[Tuple[int, int]]) -> Set[Tuple[int, int]]:
    """Of files by device and inode, those that some process which this one may look at has open for writing."""
    found: Set[Tuple[int, int]] = set()
    for pid in all_pids():
        for number, identity in _open_files(pid):
            if identity in files and identity not in found and _writes(pid, number):
                found.add(identity)
    return found


def _open_files(pid: int) -> Iterator[Tuple[str, Tuple[int, int]]]:
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
