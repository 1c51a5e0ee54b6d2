"""Object stores in a directory, which a group of users may share, and in memory."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat as modes
import threading
import time
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

from trainctl.base.lease import holder_name, is_process_dead
from trainctl.base.objects import ObjectStat, check_key
from trainctl.base.units import format_bytes
from trainctl.errors import StorageError, TrainctlError
from trainctl.store import keys

_TEMPORARY = ".tmp"
_ATTEMPTS = 10
SPARE_BYTES = 64 * 2**20
"""Bytes kept free on the disk."""
_READ_BYTES = 2**20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of opening a missing file or a symlink."""
Data = Union[bytes, bytearray, memoryview]


class DirectoryObjects:
    """An ObjectStore. It lists only keys that are ``is_own``, and follows no symlinks.

    If the root is setgid and group-writable, everything below it is shared with the group, whatever the umask.
    """

    def __init__(
        self,
        root: Path,
        is_own: Callable[[str], bool] = keys.is_store_key,
        explain: Optional[Callable[[Path, OSError], TrainctlError]] = None,
    ) -> None:
        self.root = root
        self._is_own = is_own
        self._explain = explain or _storage_error
        self._lock = threading.Lock()
        self._existing: Set[str] = set()
        self._unsynced: Set[str] = set()
        self._is_for_group = False

    @property
    def url(self) -> str:
        return self.root.absolute().as_uri()

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """The result is shorter if the disk can't read all of it."""
        with self._explained(), self._opened(key) as descriptor:
            if descriptor is None:
                return None
            size = os.fstat(descriptor).st_size - offset
            return _read(descriptor, offset, max(0, size if length is None else min(length, size)))

    def fetch(self, key: str, into: BinaryIO) -> bool:
        with self._explained(), self._opened(key) as descriptor:
            if descriptor is None:
                return False
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                shutil.copyfileobj(stream, into, _READ_BYTES)
            return True

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        with self._explained(), self._written(data, durable=durable) as temporary:
            self._place(key, lambda path: os.replace(temporary, path))  # noqa: PTH105
            if durable:
                self._sync([self._path(key).parent])

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._explained(), self._written(data, durable=True) as temporary:
            try:
                self._place(key, lambda path: os.link(temporary, path))
            except FileExistsError:
                # A network file system may have linked it and lost the reply: then there are two links.
                if os.stat(temporary).st_nlink != 2:  # noqa: PTH116
                    return False
            self._sync([self._path(key).parent])
            return True

    def sync(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        with self._explained():
            self._sync([*paths, *{path.parent for path in paths}])

    def stat(self, key: str) -> Optional[ObjectStat]:
        with self._explained():
            try:
                status = self._path(key).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        is_file = modes.S_ISREG(status.st_mode)
        return ObjectStat(key, status.st_size, status.st_mtime) if is_file else None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        with self._explained():
            yield from self._listed(prefix, after)

    def delete(self, keys: Sequence[str]) -> None:
        """Durable for all but blobs, which others name."""
        directories = set()
        with self._explained():
            for key in keys:
                path = f"{self.root}/{check_key(key)}"
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)  # noqa: PTH108
                    directories.add(os.path.dirname(path))  # noqa: PTH120
            for directory in directories:
                self._remove_empty(directory)

    def _remove_empty(self, directory: str) -> None:
        """Sync a directory after deletions; remove it and its parents if empty."""
        from trainctl.base.filesystem.files import sync_directory

        with contextlib.suppress(FileNotFoundError):
            if not directory.startswith(f"{self.root}/{keys.BLOBS}/"):
                sync_directory(Path(directory))
        with contextlib.suppress(OSError), self._lock:
            while len(directory) > len(str(self.root)):
                os.rmdir(directory)  # noqa: PTH106
                self._existing.discard(directory)
                directory = os.path.dirname(directory)  # noqa: PTH120

    def _listed(self, prefix: str, after: str) -> Iterator[ObjectStat]:
        for name, entry in self._entries(f"{self.root}/{prefix}"):
            key = f"{prefix}/{name}" if prefix else name
            if name.endswith("/"):
                if not key.startswith(".") and f"{key[:-1]}0" > after:  # 0 follows / in ASCII
                    yield from self._listed(key[:-1], after)
            elif key > after and self._is_own(key):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield ObjectStat(key, status.st_size, status.st_mtime)

    def _entries(self, directory: str) -> List[Tuple[str, os.DirEntry[str]]]:
        """Return files and directories (with a slash), in key order."""
        try:
            with os.scandir(directory) as entries:
                return sorted(
                    (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
                    for entry in entries
                    if not entry.is_symlink()
                )
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            self._check_root()
            return []

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _check_root(self) -> None:
        """Raise NotADirectoryError if the root is a file."""
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.root))

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[Optional[int]]:
        try:
            path = f"{self.root}/{check_key(key)}"
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if modes.S_ISDIR(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            if error.errno == errno.ENOTDIR:
                self._check_root()
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _written(self, data: Data, *, durable: bool) -> Iterator[str]:
        """Yield a temporary file with these bytes; remove it at the end."""
        from trainctl.base.filesystem.files import PRIVATE_FILE, SHARED_FILE, write_at

        self._prepare()
        path = f"{self.root}/{_TEMPORARY}/{holder_name()}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, PRIVATE_FILE)
            try:
                if self._is_for_group:
                    os.fchmod(descriptor, SHARED_FILE)
                write_at(descriptor, 0, data)
                if durable:
                    os.fsync(descriptor)
                else:  # start writing to the disk, so that the sync at the end is short
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108

    def _place(self, key: str, act: Callable[[str], None]) -> None:
        """Call ``act`` with a key's path; retry if others remove its empty directory."""
        path = f"{self.root}/{check_key(key)}"
        for _ in range(_ATTEMPTS):
            try:
                self._make(os.path.dirname(path))  # noqa: PTH120
                return act(path)
            except FileNotFoundError:  # noqa: PERF203
                self._existing = set()
            except OSError as error:
                error.filename = path
                raise
        raise FileNotFoundError(
            errno.ENOENT, "its directory is deleted repeatedly by another process", path
        )

    def _prepare(self) -> None:
        """Create the directories; delete temporary files of dead writers."""
        from trainctl.base.filesystem.files import is_group_shared, make_directory, sync_directory

        if f"{self.root}/{_TEMPORARY}" in self._existing:
            return
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        make_directory(self.root, shared=True)
        for path in missing:
            sync_directory(path.parent)
        self._is_for_group = is_group_shared(self.root.stat())
        self._make(f"{self.root}/{_TEMPORARY}")
        for _, entry in self._entries(f"{self.root}/{_TEMPORARY}"):
            if is_process_dead(entry.name.rpartition(".")[0]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.root}/{_TEMPORARY}/{entry.name}")  # noqa: PTH108

    def _make(self, directory: str) -> None:
        """Create a directory below the root and its parents; durable with the next sync."""
        from trainctl.base.filesystem.files import SHARED_DIRECTORY

        if directory in self._existing or directory == str(self.root):
            return
        parent = os.path.dirname(directory)  # noqa: PTH120
        self._make(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, SHARED_DIRECTORY if self._is_for_group else 0o700)  # noqa: PTH102
            if self._is_for_group:
                os.chmod(directory, SHARED_DIRECTORY)  # noqa: PTH101
            with self._lock:
                self._unsynced.add(directory)
        self._existing.add(directory)

    def _sync(self, paths: Sequence[Path]) -> None:
        """Make paths durable, and the directories that this process created before."""
        from trainctl.base.filesystem.files import make_durable

        with self._lock:
            unsynced = set(self._unsynced)
        make_durable([*{Path(path).parent for path in unsynced}, *paths], self.root)
        with self._lock:
            self._unsynced -= unsynced

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(self.root, error) from error


def free_bytes(path: Path) -> int:
    """Return the free bytes at the path or its nearest existing ancestor."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def _read(descriptor: int, offset: int, length: int) -> bytes:
    buffers: List[bytes] = []
    with contextlib.suppress(OSError):
        while length:
            data = os.pread(descriptor, length, offset)
            if not data:
                break
            buffers.append(data)
            offset, length = offset + len(data), length - len(data)
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _storage_error(root: Path, error: OSError) -> StorageError:
    from trainctl.base.filesystem.space import SHARING_ADVICE, is_readable

    if error.errno in _DISK_FULL:
        if error.errno == errno.EDQUOT:
            full = "has no space left for this user (disk quota)"
        elif (free := free_bytes(root)) < SPARE_BYTES:
            full = f"is full ({format_bytes(free)} free)"
        else:
            full = "has no free inodes"
        return StorageError(
            f"the disk of the mirror {root} {full}",
            "Free disk space, or use another location in mirror: {url: …}. The next apply resumes the transfer.",
            code="disk-full",
        )
    if error.errno == errno.EROFS:
        return StorageError(
            f"the mirror {root} is on a read-only file system",
            "Mount it writable, or use another location in mirror: {url: …}.",
        )
    if error.errno in _FORBIDDEN:
        path = str(error.filename or root)
        access = "written" if is_readable(path) else "used"
        return StorageError(
            f"permission denied: the mirror {root} can't be {access} by this user ({path})",
            f"Give this user access, or use another location in mirror: {{url: …}}. {SHARING_ADVICE}",
        )
    return StorageError(
        f"the mirror {root}: {error.strerror or error} ({error.filename or root})",
        "Check the disk. No incomplete blob was stored.",
    )


class MemoryObjects:
    """An ObjectStore; ``clock`` returns the modification time of new objects."""

    def __init__(self, url: str = "memory:", clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: Dict[str, Tuple[bytes, float]] = {}

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        with self._lock:
            data, _ = self._objects.get(check_key(key), (None, 0.0))
        return None if data is None else data[offset : None if length is None else offset + length]

    def fetch(self, key: str, into: BinaryIO) -> bool:
        data = self.get(key)
        if data is not None:
            into.write(data)
        return data is not None

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        with self._lock:
            self._objects[check_key(key)] = bytes(data), self._clock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            if check_key(key) in self._objects:
                return False
            self._objects[check_key(key)] = bytes(data), self._clock()
            return True

    def sync(self, keys: Sequence[str]) -> None:
        """Memory keeps nothing."""

    def stat(self, key: str) -> Optional[ObjectStat]:
        with self._lock:
            data, modified = self._objects.get(check_key(key), (None, 0.0))
        return None if data is None else ObjectStat(key, len(data), modified)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        with self._lock:
            below = f"{prefix}/" if prefix else ""
            matching = sorted(key for key in self._objects if key.startswith(below))
        for key in matching:
            stat = self.stat(key)
            if key > after and stat is not None:
                yield stat

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(check_key(key), None)
