"""Objects as files below a directory, which a group of users may share."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shlex
import shutil
import stat as modes
import threading
from pathlib import Path
from typing import BinaryIO, Callable, Iterator, List, Optional, Sequence, Set, Tuple, Union

from trainctl.base.failure import SHARING_ADVICE, is_readable
from trainctl.base.filesystem import group_sharing
from trainctl.base.filesystem.files import PRIVATE_FILE, make_durable, sync, sync_directory
from trainctl.base.lease import holder_name, is_process_dead
from trainctl.base.objects import ObjectStat, check_key
from trainctl.base.units import format_bytes
from trainctl.errors import StorageError, TrainctlError
from trainctl.store import keys

_TEMPORARY = ".tmp"
_OLD_FORMAT_DIRECTORY = "fingerprints"
"""A directory that older versions made in a mirror."""
_ATTEMPTS = 10
SPARE_BYTES = 64 * 2**20
"""What stays free on the disk."""
_READ_BYTES = 2**20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Nothing, or a link, which isn't followed."""
Data = Union[bytes, bytearray, memoryview]


class DirectoryObjects:
    """An ObjectStore. Files of others below the root, which aren't ``is_own``, are not listed, and links aren't followed.

    If the root is setgid and group-writable, so is everything below it, whatever the umask says.
    """

    def __init__(
        self,
        root: Path,
        is_own: Callable[[str], bool] = keys.is_store_key,
        explain: Optional[Callable[[Path, OSError], TrainctlError]] = None,
    ) -> None:
        self.root = root
        _check_format(root)
        self._is_own = is_own
        self._explain = explain or _storage_error
        self._lock = threading.Lock()
        self._made: Set[str] = set()
        self._unsynced: Set[str] = set()
        self._is_for_group = False

    @property
    def url(self) -> str:
        """See ObjectStore."""
        return self.root.absolute().as_uri()

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """See ObjectStore. What the disk can't read is missing at the end."""
        with self._explained(), self._opened(key) as descriptor:
            if descriptor is None:
                return None
            size = os.fstat(descriptor).st_size - offset
            return _read(descriptor, offset, max(0, size if length is None else min(length, size)))

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """See ObjectStore."""
        with self._explained(), self._opened(key) as descriptor:
            if descriptor is None:
                return False
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                shutil.copyfileobj(stream, into, _READ_BYTES)
            return True

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        """See ObjectStore."""
        with self._explained(), self._written(data, durable=durable) as temporary:
            self._place(key, lambda path: os.replace(temporary, path))  # noqa: PTH105
            if durable:
                self._sync([self._path(key).parent])

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See ObjectStore."""
        with self._explained(), self._written(data, durable=True) as temporary:
            try:
                self._place(key, lambda path: os.link(temporary, path))
            except FileExistsError:
                # A network file system may have done it and lost the reply: two names say that it was us.
                if os.stat(temporary).st_nlink != 2:  # noqa: PTH116
                    return False
            self._sync([self._path(key).parent])
            return True

    def sync(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""
        paths = [self._path(key) for key in keys]
        with self._explained():
            self._sync([*paths, *{path.parent for path in paths}])

    def stat(self, key: str) -> Optional[ObjectStat]:
        """See ObjectStore."""
        with self._explained():
            try:
                status = self._path(key).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        is_file = modes.S_ISREG(status.st_mode)
        return ObjectStat(key, status.st_size, status.st_mtime) if is_file else None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """See ObjectStore."""
        with self._explained():
            yield from self._listed(prefix, after)

    def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore. What names content is gone for good before the content is deleted."""
        with self._explained():
            directories = {self._unlink(key) for key in keys}
            for directory in directories - {None}:
                self._tidy(str(directory))

    def _unlink(self, key: str) -> Optional[str]:
        path = f"{self.root}/{check_key(key)}"
        try:
            os.unlink(path)  # noqa: PTH108
        except (FileNotFoundError, NotADirectoryError):
            return None
        return os.path.dirname(path)  # noqa: PTH120

    def _tidy(self, directory: str) -> None:
        """Sync a directory from which files were deleted, and remove those that are empty now."""
        with contextlib.suppress(FileNotFoundError):
            if not directory.startswith(f"{self.root}/{keys.BLOBS}/"):
                sync_directory(Path(directory))
        with contextlib.suppress(OSError), self._lock:
            while len(directory) > len(str(self.root)):
                os.rmdir(directory)  # noqa: PTH106
                self._made.discard(directory)
                directory = os.path.dirname(directory)  # noqa: PTH120

    def _listed(self, prefix: str, after: str) -> Iterator[ObjectStat]:
        for name, entry in self._entries(f"{self.root}/{prefix}"):
            key = f"{prefix}/{name}" if prefix else name
            if name.endswith("/"):
                if not key.startswith(".") and f"{key[:-1]}0" > after:  # 0 is next after /
                    yield from self._listed(key[:-1], after)
            elif key > after and self._is_own(key):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield ObjectStat(key, status.st_size, status.st_mtime)

    def _entries(self, directory: str) -> List[Tuple[str, os.DirEntry[str]]]:
        """Files and directories, the latter with a slash, in the order of keys."""
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
        """A file in the place of the root is an error, not an empty store."""
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
        """A temporary file with these bytes, which is gone in the end."""
        self._prepare()
        path = f"{self.root}/{_TEMPORARY}/{holder_name()}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, PRIVATE_FILE)
            try:
                if self._is_for_group:
                    os.fchmod(descriptor, group_sharing.FILE)
                _write(descriptor, memoryview(data))
                if durable:
                    sync(descriptor)
            finally:
                os.close(descriptor)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108

    def _place(self, key: str, act: Callable[[str], None]) -> None:
        """Give a file its name, in a directory that others may remove as long as it is empty."""
        path = f"{self.root}/{check_key(key)}"
        for _ in range(_ATTEMPTS):
            try:
                self._make(os.path.dirname(path))  # noqa: PTH120
                return act(path)
            except FileNotFoundError:  # noqa: PERF203
                self._made = set()
            except OSError as error:
                error.filename = path
                raise
        raise FileNotFoundError(
            errno.ENOENT, "its directory is deleted repeatedly by another process", path
        )

    def _prepare(self) -> None:
        """Make the root and the directory for temporary files; delete what dead writers left there."""
        if f"{self.root}/{_TEMPORARY}" in self._made:
            return
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        group_sharing.make_directory(self.root)
        for path in missing:
            sync_directory(path.parent)
        self._is_for_group = group_sharing.is_group_shared(self.root.stat())
        self._make(f"{self.root}/{_TEMPORARY}")
        for _, entry in self._entries(f"{self.root}/{_TEMPORARY}"):
            if is_process_dead(entry.name.rpartition(".")[0]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.root}/{_TEMPORARY}/{entry.name}")  # noqa: PTH108

    def _make(self, directory: str) -> None:
        """Make a directory below the root, and those above it; durable with the next sync."""
        if directory in self._made or directory == str(self.root):
            return
        parent = os.path.dirname(directory)  # noqa: PTH120
        self._make(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, group_sharing.DIRECTORY if self._is_for_group else 0o700)  # noqa: PTH102
            if self._is_for_group:
                os.chmod(directory, group_sharing.DIRECTORY)  # noqa: PTH101
            with self._lock:
                self._unsynced.add(directory)
        self._made.add(directory)

    def _sync(self, paths: Sequence[Path]) -> None:
        """Make files and directories durable, and the directories that this process made before."""
        with self._lock:
            made = set(self._unsynced)
        make_durable([*{Path(path).parent for path in made}, *paths], self.root)
        with self._lock:
            self._unsynced -= made

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(self.root, error) from error


def _check_format(root: Path) -> None:
    """StorageError for a mirror whose files have other names: it would look empty, and all of its content unused."""
    if os.path.isdir(root / _OLD_FORMAT_DIRECTORY):  # noqa: PTH112 - False where this user may not look
        raise StorageError(
            f"{root} is a mirror of an incompatible older version of trainctl",
            f"Delete it; the next apply downloads everything again: rm -r {shlex.quote(str(root))}",
        )


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk of the nearest directory that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def _read(descriptor: int, offset: int, length: int) -> bytes:
    pieces: List[bytes] = []
    with contextlib.suppress(OSError):
        while length:
            piece = os.pread(descriptor, length, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _storage_error(root: Path, error: OSError) -> StorageError:
    if error.errno in _DISK_FULL:
        return StorageError(
            f"the disk of the mirror {root} {_disk_full_text(root, error)}",
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
        done = "written" if is_readable(path) else "used"
        return StorageError(
            f"permission denied: the mirror {root} can't be {done} by this user ({path})",
            f"Give this user access, or use another location in mirror: {{url: …}}. {SHARING_ADVICE}",
        )
    return StorageError(
        f"the mirror {root}: {error.strerror or error} ({error.filename or root})",
        "Check the disk. No incomplete blob was stored.",
    )


def _disk_full_text(root: Path, error: OSError) -> str:
    """What the disk lacks: bytes, or else files, or this user's quota."""
    if error.errno == errno.EDQUOT:
        return "has no space left for this user (disk quota)"
    free = free_bytes(root)
    return f"is full ({format_bytes(free)} free)" if free < SPARE_BYTES else "has no free inodes"  # fmt: skip
