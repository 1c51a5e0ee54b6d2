"""Checkpoints of a run: which there are, and getting one."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainctl.errors import NodeError, StorageError, UsageError
from trainctl.model.status import Checkpoint
from trainctl.operations.runs import Run, control
from trainctl.operations.streaming import pieces
from trainctl.operations.workspace import Workspace


def checkpoints(workspace: Workspace, run: Run) -> list[Checkpoint]:
    """The checkpoints of a run, by rank and time."""
    rows = control(workspace).checkpoints(run.job.address, run.project, run.record)
    found = [_checkpoint(row, run) for row in rows]
    return sorted(found, key=lambda one: (one.rank, one.created_at, one.step or 0, one.name))


def download(
    workspace: Workspace, run: Run, target: Path, *, name: str | None = None, rank: int = 0
) -> Path:
    """Copy a checkpoint (the newest complete one by default) into ``target/<name>``, whole or not at all."""
    chosen = _choose(checkpoints(workspace, run), run, name, rank)
    place = target / (f"checkpoint-{run.record.id}" if chosen.name == "." else chosen.name)
    if place.exists():
        raise UsageError(
            f"{place} exists already", "Move it away, or name another directory: --target DIR."
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".download-", dir=target))
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror}") from error
    try:
        runs = control(workspace)
        job = run.job.address
        data = pieces(
            lambda take: runs.read_checkpoint(job, run.project, run.record, rank, chosen.name, take)
        )
        with tarfile.open(fileobj=_Stream(data), mode="r|") as tar:
            tar.extractall(unfinished, filter="data")
        (unfinished / chosen.name if (unfinished / chosen.name).is_dir() else unfinished).rename(
            place
        )
    except (OSError, tarfile.TarError) as error:
        raise StorageError(f"{chosen.name} could not be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _choose(found: list[Checkpoint], run: Run, name: str | None, rank: int) -> Checkpoint:
    candidates = [
        one for one in found if one.rank == rank and (one.name == name if name else one.complete)
    ]
    if not candidates:
        known = ", ".join(sorted({one.name for one in found})) or "none"
        what = f"checkpoint {name}" if name else "complete checkpoint"
        raise UsageError(
            f"run {run.record.id} of {run.job.address} has no {what} of rank {rank}",
            f"It has: {known}.",
            code="no-such-checkpoint",
        )
    return candidates[-1]


def _checkpoint(row: dict[str, Any], run: Run) -> Checkpoint:
    name = str(row["name"])
    if name in ("", "..") or "/" in name:  # it becomes a directory here
        raise NodeError(f"node {row['node']} names a checkpoint {name!a}", "That is no file name.")
    url = f"node://{row['node']}{row['directory']}"
    known = {
        name: row[name]
        for name in ("name", "rank", "step", "bytes", "files", "complete", "created_at")
    }
    return Checkpoint(run=run.record.id, url=url, **known)


class _Stream(io.RawIOBase):
    """An iterator of bytes as a file that is read once."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._data, None)
            if piece is None:
                break
            self._rest += piece
        taken, self._rest = (
            (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        )
        return taken
