"""The code that a run ran, unpacked as a directory: whole or not at all."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainctl.errors import NodeError, StorageError, TrainctlError, UnknownOnNode, UsageError
from trainctl.jobs.environment import file_name
from trainctl.operations.jobs.runs import JobRun, run_control
from trainctl.operations.streams import iterate_callbacks
from trainctl.operations.workspace import Workspace


def require_absent(place: Path) -> None:
    """UsageError if there is something already."""
    if place.exists() or place.is_symlink():
        raise UsageError(
            f"{place} already exists",
            "Move it, or use another directory: --output-dir DIR.",
            code="target-exists",
        )


def unpack(
    data: Iterator[bytes],
    place: Path,
    what: str,
    *,
    inner: str = ".",
    check: Callable[[], None] | None = None,
) -> None:
    """Unpack into ``place``, of the tar only what is below ``inner`` if that is a directory there.

    ``check`` is called when all was read and before anything is visible; StorageError where this machine can't.
    """
    target = place.parent
    try:
        target.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".download-", dir=target))
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror}") from error
    try:
        unfinished.chmod(0o755)
        with tarfile.open(fileobj=_IteratorFile(data), mode="r|") as tar:
            tar.extractall(unfinished, filter="data")
        for _ in data:
            continue  # what follows the tar's end
        if check is not None:
            check()
        (unfinished / inner if (unfinished / inner).is_dir() else unfinished).rename(place)
    except (OSError, tarfile.TarError) as error:
        raise StorageError(f"cannot copy {what} to {target}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class _IteratorFile(io.RawIOBase):
    """An iterator of bytes as a file that is read once."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer than asked for only at the end."""
        while size < 0 or len(self._rest) < size:
            piece = next(self._data, None)
            if piece is None:
                break
            self._rest += piece
        taken, self._rest = (
            (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        )
        return taken


def download_code(workspace: Workspace, run: JobRun, target: Path) -> Path:
    """The code tree, byte for byte as the run's nodes unpacked it, as ``<project>_<job>_<run id>`` in ``target``."""
    record = run.record
    what = f"the code of run {record.number} ({record.id})"
    place = target / f"{run.project}_{file_name(run.job.address)}_{record.id}"
    require_absent(place)
    code = record.code
    if code is None or not record.ranks:
        raise TrainctlError(
            f"{what} is not available: the run never reached a node", code="run-not-found"
        )
    found = hashlib.sha256()

    def data() -> Iterator[bytes]:
        runs = run_control(workspace)
        for piece in iterate_callbacks(lambda take: runs.read_code(record, code, take)):
            found.update(piece)
            yield piece

    def check() -> None:
        if record.code_archive and found.hexdigest() != record.code_archive:
            raise NodeError(
                f"{what} differs from the code of the run",
                f"Received an archive with sha256 {found.hexdigest()} from {record.ranks[0].node}; expected {record.code_archive}.",
            )

    try:
        unpack(data(), place, what, check=check)
    except UnknownOnNode as error:
        raise UnknownOnNode(f"{what} not found on {record.ranks[0].node}", error.summary) from error
    return place
