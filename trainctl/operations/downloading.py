"""Getting a checkpoint: every file verified, the directory whole or not there, an interrupted download taken up again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trainctl.base.json import digest
from trainctl.base.protocol.checkpoints import ObjectWanted
from trainctl.errors import StorageError, UsageError
from trainctl.operations.checkpoints import checkpoint_from, checkpoints_of, choose
from trainctl.operations.runs import Run
from trainctl.operations.workspace import Workspace
from trainctl.resources.checkpoints import Checkpoints

_BLOCK = 2**20


class Downloaded(NamedTuple):
    """Where it lies now, and how many links in it led to what was never kept."""

    place: Path
    left_out: int


def download(
    workspace: Workspace, run: Run, target: Path, *, name: str | None = None, rank: int = 0
) -> Downloaded:
    """Copy a checkpoint (the newest complete one by default) into ``target/<name>``, whole or not at all.

    What an earlier attempt has brought, and is right, isn't fetched again. Only the rank's own node is needed: whether others have
    theirs whole, too, counts as far as they can be asked. UsageError if there is no such
    checkpoint or something is in the way; StorageError if a file isn't what it was when it was kept.
    """
    way = checkpoints_of(workspace, run)
    chosen = choose(way.rows(brief=False, of=rank), run, name, rank)
    checkpoint_from(chosen, run)
    place = target / (f"checkpoint-{run.record.id}" if chosen["name"] == "." else chosen["name"])
    if place.exists():
        raise UsageError(
            f"{place} exists already",
            "Move it away, or name another directory: --target DIR.",
            code="target-exists",
        )
    unfinished = target / f".download-{digest([chosen['url'], chosen['files']])[7:23]}"
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        with way.leased(rank, chosen["name"]):
            _fetch(way, chosen, unfinished)
        unfinished.rename(place)
    except OSError as error:
        raise StorageError(f"{chosen['name']} could not be copied to {target}: {error}") from error
    return Downloaded(place, int(chosen.get("left_out") or 0))


def _fetch(way: Checkpoints, chosen: Mapping[str, Any], directory: Path) -> None:
    """Bring every file into the directory, those that are there and right left alone."""
    wanted = []
    for file in chosen["files"]:
        path = directory / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        have = path.stat().st_size if path.is_file() else 0
        if have == file["size"] and path.is_file() and _sha256(path) == file["sha256"]:
            continue
        wanted.append((file, path, have if have < file["size"] else 0))
    if not wanted:
        return
    arriving = _Arriving(wanted)
    try:
        objects: list[ObjectWanted] = [
            {"key": file["key"], "offset": offset} for file, _, offset in wanted
        ]
        way.read(chosen["rank"], objects, arriving.take)
    finally:
        arriving.close()
    for file, path, _ in wanted:
        if path.stat().st_size != file["size"] or _sha256(path) != file["sha256"]:
            path.unlink()
            raise StorageError(
                f"{file['path']} of checkpoint {chosen['name']} is not what was kept",
                "What was right of the others is kept. Try again; if it stays wrong, the store has been changed.",
            )


class _Arriving:
    """Bytes of several files, one after another, put where they belong."""

    def __init__(self, wanted: Sequence[tuple[Mapping[str, Any], Path, int]]) -> None:
        self._rest: Iterator[tuple[Mapping[str, Any], Path, int]] = iter(wanted)
        self._file: BinaryIO | None = None
        self._left = 0
        self._next()

    def take(self, data: bytes) -> None:
        """The next bytes. StorageError if there are more than all files need."""
        while data:
            while self._file is not None and self._left == 0:
                self._next()
            if self._file is None:
                raise StorageError("more arrived than the checkpoint's files hold")
            self._file.write(data[: self._left])
            data, self._left = data[self._left :], max(0, self._left - len(data))

    def close(self) -> None:
        """Keep what has arrived; files of no bytes are made."""
        while self._file is not None and self._left == 0:
            self._next()
        if self._file is not None:
            self._file.close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        entry = next(self._rest, None)
        if entry is not None:
            file, path, offset = entry
            self._file = path.open("ab" if offset else "wb")
            self._left = file["size"] - offset


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
