"""Checkpoints in a directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Callable, Iterator, Optional
from urllib.parse import quote

from trainctl.base.checkpoints.store import Store
from trainctl.base.failure import Failure
from trainctl.base.files import make_directory, names_in, real_file, sync_directory
from trainctl.base.objects import ObjectStat
from trainctl.base.pace import Pace

_BLOCK = 2**18
_ATTEMPTS = 5
_UPLOADS = ".uploads"
_LARGEST = 64 * 2**20
"""Most bytes of an object that is read whole: manifests of a million files are smaller."""


class DirectoryStore(Store):
    """Objects are files. Each is written under ``.uploads``, made durable, and renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        """Atomic and durable."""
        self.put_file(key, BytesIO(data), len(data), Pace())
        self._leave_uploads()

    def put_file(self, key: str, stream: BinaryIO, size: int, pace: Pace) -> None:
        """Copied beside, made durable, renamed."""
        path = self._path(key)
        run = _hashed("/".join(key.split("/")[:3]))
        temporary = self._root / _UPLOADS / f"{run}-{os.urandom(8).hex()}"
        try:
            with os.fdopen(_create(temporary), "wb") as target:
                _copy(stream, target, size, pace)
                target.flush()
                os.fsync(target.fileno())
            make_directory(path.parent)
            temporary.replace(path)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        sync_directory(path.parent)

    def get(self, key: str) -> Optional[bytes]:
        """None also where a directory is."""
        try:
            with self._path(key).open("rb") as stream:
                return stream.read(_LARGEST)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """In blocks of a mebibyte."""
        try:
            with os.fdopen(self._open(self._path(key)), "rb") as stream:
                stream.seek(offset)
                for data in iter(lambda: stream.read(_BLOCK), b""):
                    write(data)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise Failure("missing", f"{key!r} is not there any more") from None

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Links are not followed and not listed."""
        top = self._root / prefix.rpartition("/")[0]
        for directory, inner, names in os.walk(str(top)):
            inner.sort()
            for name in sorted(names):
                path = Path(directory, name)
                key = path.relative_to(self._root).as_posix()
                with contextlib.suppress(FileNotFoundError):
                    found = path.lstat()
                    if key.startswith(prefix) and not path.is_symlink():
                        yield ObjectStat(key, found.st_size, found.st_mtime)

    def delete(self, key: str) -> None:
        """Directories that are then empty go too."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        for above in path.parents:
            if above == self._root or names_in(above):
                return
            with contextlib.suppress(OSError):  # somebody put something there this moment
                above.rmdir()

    def abandon(self, prefix: str) -> None:
        """Temporary files of that run; the directory for them, if nobody else has any."""
        run = _hashed("/".join(prefix.split("/")[:3]))
        uploads = self._root / _UPLOADS
        for name in names_in(uploads):
            if name.startswith(f"{run}-"):
                with contextlib.suppress(FileNotFoundError):
                    (uploads / name).unlink()
        self._leave_uploads()

    def url(self, key: str, seconds: int) -> str:
        """A ``file:`` URL: it lives as long as the file."""
        return "file://" + quote(os.fsencode(str(self._path(key))))

    def _open(self, path: Path) -> int:
        """A descriptor for reading. A link is a job's own, in a checkpoint that is stored where it was saved."""
        if path.is_symlink() and real_file(path, self._root) is None:
            raise FileNotFoundError(errno.ENOENT, "it leads elsewhere", str(path))
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _leave_uploads(self) -> None:
        with contextlib.suppress(OSError):  # somebody else copies a file
            (self._root / _UPLOADS).rmdir()

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise Failure("name", f"{key!r} can't be kept under that name")
        return self._root / key


def _create(temporary: Path) -> int:
    """A new file below a directory that may vanish at any moment, as long as it is empty; its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.open(make_directory(temporary.parent) / temporary.name, flags, 0o600)
    return os.open(temporary, flags, 0o600)


def _hashed(prefix: str) -> str:
    return hashlib.sha256(os.fsencode(prefix)).hexdigest()[:16]


def _copy(stream: BinaryIO, target: BinaryIO, size: int, pace: Pace) -> None:
    left = size
    while left > 0:
        data = stream.read(min(_BLOCK, left))
        if not data:
            raise Failure("changed", "the file became shorter while it was read")
        pace.spend(len(data))
        target.write(data)
        left -= len(data)
