"""Checkpoint store in a directory."""

from __future__ import annotations

import contextlib
import os
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Callable, Iterator, Optional
from urllib.parse import quote

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import (
    file_mode_for,
    is_temporary,
    list_names,
    make_directory,
    resolve_within,
    write_atomic,
)
from trainctl.base.objects import ObjectStat
from trainctl.base.throughput import RateLimiter

_BLOCK = 2**18
_MAX_BYTES = 64 * 2**20
"""Limit of ``get``; manifests of a million files are smaller."""


class DirectoryCheckpointStore:
    """A ``CheckpointStore`` whose objects are files, written atomically; a group may share the directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a small object."""
        self.put_file(key, BytesIO(data), len(data), RateLimiter())

    def put_file(self, key: str, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        """Create or replace an object with the next bytes of a stream."""
        path = self._path(key)
        try:
            make_directory(path.parent, shared=True)
            mode = file_mode_for(path.parent)
            write_atomic(path, _blocks(stream, size, rate_limiter), mode=mode)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def get(self, key: str) -> Optional[bytes]:
        """Return a small object; None if it is missing or a directory."""
        try:
            with self.open(key) as stream:
                return stream.read(_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Pass an object's bytes from ``offset`` to ``write``."""
        try:
            with self.open(key) as stream:
                stream.seek(offset)
                for data in iter(lambda: stream.read(_BLOCK), b""):
                    write(data)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise Failure("missing", f"{key!r} no longer exists") from None

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield the objects below a prefix, without symlinks."""
        top = self.root / prefix.rpartition("/")[0]
        for directory, inner, names in os.walk(str(top)):
            inner.sort()
            for name in sorted(names):
                path = Path(directory, name)
                key = path.relative_to(self.root).as_posix()
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    if key.startswith(prefix) and not path.is_symlink():
                        yield ObjectStat(key, status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """Remove an object and its then empty directories."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        for above in path.parents:
            if above == self.root or list_names(above):
                return
            with contextlib.suppress(OSError):  # another process may have added a file
                above.rmdir()

    def abandon(self, prefix: str) -> None:
        """Remove temporary files of killed uploads."""
        for stored in list(self.list(prefix)):
            if is_temporary(stored.key.rpartition("/")[2]):
                self.delete(stored.key)

    def close(self) -> None:
        """Do nothing; no files are kept open."""

    def url(self, key: str, seconds: int) -> str:
        """Return a ``file:`` URL."""
        return "file://" + quote(os.fsencode(str(self._path(key))))

    def open(self, key: str) -> BinaryIO:
        """Open for reading; symlinks in checkpoints must not lead outside."""
        path = self._path(key)
        if path.is_symlink() and resolve_within(path, self.root) is None:
            raise FileNotFoundError(path)
        return path.open("rb")

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise Failure("name", f"{key!r} is not a valid object name")
        return self.root / key


def _blocks(stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> Iterator[bytes]:
    while size > 0:
        data = stream.read(min(_BLOCK, size))
        if not data:
            raise Failure("changed", "the file was truncated while it was read")
        rate_limiter.acquire(len(data))
        yield data
        size -= len(data)
