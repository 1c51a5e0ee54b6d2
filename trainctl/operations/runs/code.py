"""Download the code of a run into a directory."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from trainctl.base.filesystem.archives import UnsafeArchive, unpack
from trainctl.errors import NodeError, StorageError, TrainctlError, UnknownOnNode, UsageError
from trainctl.inputs.environment import file_name
from trainctl.operations.runs.lookup import JobRun, run_control
from trainctl.operations.streams import iterate_callbacks
from trainctl.operations.workspace import Workspace


def require_absent(place: Path, option: str = "--output-dir") -> None:
    """Raise UsageError if the path exists; ``option`` names another directory."""
    if place.exists() or place.is_symlink():
        raise UsageError(
            f"{place} already exists",
            f"Move it, or use another directory: {option} DIR.",
            code="target-exists",
        )


def _unpack(data: Iterator[bytes], place: Path, label: str, check: Callable[[], None]) -> None:
    """Unpack a tar into ``place``, which exists once it is complete."""
    target = place.parent
    try:
        target.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".download-", dir=target))
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror}") from error
    try:
        unfinished.chmod(0o755)
        unpack(cast("IO[bytes]", _IteratorFile(data)), unfinished)
        for _ in data:
            continue  # padding after the tar's end
        check()
        unfinished.rename(place)
    except (OSError, UnsafeArchive) as error:
        raise StorageError(f"cannot copy {label} to {target}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _save(data: Iterator[bytes], place: Path, label: str, check: Callable[[], None]) -> None:
    """Write a file, which is there only once it is complete."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".download-", dir=place.parent) as unfinished:
            for buffer in data:
                unfinished.write(buffer)
            unfinished.flush()
            check()
            os.link(unfinished.name, place)
    except OSError as error:
        raise StorageError(f"cannot copy {label} to {place.parent}: {error}") from error


class _IteratorFile(io.RawIOBase):
    """A readable file of an iterator of bytes."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes; fewer than ``size`` only at the end."""
        while size < 0 or len(self._rest) < size:
            buffer = next(self._data, None)
            if buffer is None:
                break
            self._rest += buffer
        end = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:end], self._rest[end:]
        return data


def download_code(
    workspace: Workspace, run: JobRun, target: Path, *, archive: bool = False
) -> Path:
    """Download the code to ``target/<project>_<job>_<run id>``, verified; as ``.tar`` if ``archive``."""
    record = run.record
    label = f"the code of run {record.number} ({record.id})"
    name = f"{run.project}_{file_name(run.job.address)}_{record.id}"
    place = target / (f"{name}.tar" if archive else name)
    require_absent(place)
    code = record.code
    if code is None or not record.ranks:
        raise TrainctlError(
            f"{label} is not available: the run never reached a node", code="run-not-found"
        )
    sha256 = hashlib.sha256()

    def read() -> Iterator[bytes]:
        control = run_control(workspace)
        for buffer in iterate_callbacks(lambda take: control.read_code(record, code, take)):
            sha256.update(buffer)
            yield buffer

    def check() -> None:
        if record.code_archive and sha256.hexdigest() != record.code_archive:
            raise NodeError(
                f"{label} differs from the code of the run",
                f"Received an archive with sha256 {sha256.hexdigest()} from {record.ranks[0].node}; expected {record.code_archive}.",
            )

    node = record.ranks[0].node
    try:
        if archive:
            _save(read(), place, label, check)
        else:
            _unpack(read(), place, label, check)
    except UnknownOnNode as error:
        raise UnknownOnNode(f"{label} not found on {node}", error.summary) from error
    return place
