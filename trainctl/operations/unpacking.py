"""Tars that arrive piece by piece, as directories: whole or not at all."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainctl.errors import StorageError, UsageError


def refuse_existing(place: Path, flag: str) -> None:
    """UsageError if there is something already."""
    if place.exists() or place.is_symlink():
        raise UsageError(
            f"{place} exists already",
            f"Move it away, or name another directory: {flag} DIR.",
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
        with tarfile.open(fileobj=_Stream(data), mode="r|") as tar:
            tar.extractall(unfinished, filter="data")
        for _ in data:
            continue  # what follows the tar's end
        if check is not None:
            check()
        (unfinished / inner if (unfinished / inner).is_dir() else unfinished).rename(place)
    except (OSError, tarfile.TarError) as error:
        raise StorageError(f"{what} could not be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class _Stream(io.RawIOBase):
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
