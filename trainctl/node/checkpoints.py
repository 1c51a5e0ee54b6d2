"""Checkpoints of a run: ``<directory>/rank-<r>/<checkpoint>/``, and what of them can be taken for complete."""

from __future__ import annotations

import os
import re
import stat
import tarfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from trainctl.node import layout
from trainctl.node.failure import Failure
from trainctl.node.files import names_in, remove_tree
from trainctl.node.layout import inside

Emit = Callable[[Dict[str, Any]], None]
_QUIET_SECONDS = 60.0
_SETTLED_SECONDS = 5.0
_STEP = re.compile(r"(\d+)(?:-\d+)?$")
_BLOCK = 2**20


class _Found(NamedTuple):
    name: str
    rank: int
    files: int
    bytes: int
    newest: float


def checkpoints(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """The checkpoints of all ranks, oldest first. Loose files beside them are the checkpoint ``.``.

    One is complete when its files have settled and a newer one exists, it was quiet for a minute, or the request says
    that the run has ``ended``.
    """
    directory = layout.absolute(request["directory"], "directory")
    found = [one for name in names_in(directory) for one in _of_rank(directory / name)]
    found.sort(key=lambda one: (one.newest, one.rank, one.name))
    now = time.time()
    return {
        "checkpoints": [
            {
                "name": one.name,
                "rank": one.rank,
                "step": _step(one.name),
                "files": one.files,
                "bytes": one.bytes,
                "complete": bool(request.get("ended")) or _complete(one, found, now),
                "created_at": one.newest,
            }
            for one in found
        ]
    }


def read_checkpoint(request: Mapping[str, Any], write: Callable[[bytes], None]) -> None:
    """One checkpoint as a tar; ``directory`` is the rank's, or the run's with ``name`` as ``rank-<r>/<checkpoint>``."""
    directory = layout.absolute(request["directory"], "directory")
    name = str(request["name"])
    if name.startswith("/") or any(part in ("..", "") for part in name.split("/")):
        raise Failure("request", f"{name!a} is no checkpoint's name")
    path = directory / name
    if not path.is_dir() or path.is_symlink():
        raise Failure("missing", f"there is no checkpoint {name!a} in {directory}")
    with tarfile.open(fileobj=_Writer(write), mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for file in _files(path, loose_only=name == "."):
            archive.add(str(file), arcname=file.relative_to(path).as_posix(), recursive=False)


def remove_checkpoints(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Delete the checkpoints of a run, and the directories above them up to ``data`` that are then empty."""
    directory = layout.absolute(request["directory"], "directory")
    data = layout.absolute(request["data"], "data")
    if not inside(directory, data) or directory == data:
        raise Failure("request", f"{directory} is no directory of checkpoints below {data}")
    remove_tree(directory)
    for above in directory.parents:
        if above == data or names_in(above):
            break
        above.rmdir()
    return {"removed": True}


class _Writer:
    """Just enough of a file for tarfile."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        """Pass it on."""
        self._write(data)
        return len(data)


def _of_rank(directory: Path) -> List[_Found]:
    match = re.fullmatch(r"rank-(\d+)", directory.name)
    if match is None or not directory.is_dir():
        return []
    rank = int(match[1])
    folders = [name for name in names_in(directory) if (directory / name).is_dir()]
    found = [_measure(directory / name, name, rank) for name in folders]
    found.append(_measure(directory, ".", rank))
    return [one for one in found if one is not None]


def _measure(path: Path, name: str, rank: int) -> Optional[_Found]:
    sizes: List[int] = []
    newest = 0.0
    for file in _files(path, loose_only=name == "."):
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue
        sizes.append(status.st_size)
        newest = max(newest, status.st_mtime)
    return _Found(name, rank, len(sizes), sum(sizes), newest) if sizes else None


def _files(path: Path, *, loose_only: bool) -> List[Path]:
    """Regular files below a checkpoint; links are not followed and not taken."""
    found: List[Path] = []
    for directory, inner, names in os.walk(str(path)):
        if loose_only:
            inner.clear()
        inner.sort()
        for name in sorted(names):
            file = Path(directory, name)
            if stat.S_ISREG(file.lstat().st_mode):
                found.append(file)
    return found


def _complete(one: _Found, found: List[_Found], now: float) -> bool:
    quiet = now - one.newest
    newer = any(other.rank == one.rank and other.newest > one.newest for other in found)
    return quiet >= _QUIET_SECONDS or (newer and quiet >= _SETTLED_SECONDS)


def _step(name: str) -> Optional[int]:
    match = _STEP.search(name)
    return int(match[1]) if match else None
