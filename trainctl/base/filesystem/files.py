"""Atomic and durable files, and files in directories that a group shares.

A file is written under a temporary name, synced, then renamed or linked. In a setgid, group-writable directory, files
are for the whole group, whatever the umask; elsewhere they are private.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, List, Optional, Union

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
SHARED_DIRECTORY = 0o2770
SHARED_FILE = 0o660
_FOR_GROUP = stat.S_ISGID | stat.S_IWGRP
_SYNC_ONE_BY_ONE = 128
_ATTEMPTS = 5
_NO_ANONYMOUS_FILES = (
    errno.EOPNOTSUPP,
    errno.EISDIR,
    errno.EINVAL,
    errno.ENOENT,
    errno.EXDEV,
    errno.EPERM,
)
"""Errors where O_TMPFILE is unsupported, by the file system or without /proc."""
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""Errors of opening a missing file, a symlink, a socket or a directory."""
_MAKE_ATTEMPTS = 10
_WRITE_BYTES = 2**18
"""Bytes per write. From 1 MiB Linux 6.18 (ext4) uses large folios, which take six times as long in virtual machines whose memory is not yet backed."""


def is_inside(path: Path, root: Path) -> bool:
    """Check by name that the path is the root or below it."""
    return path == root or root in path.parents


def temporary_name(name: str) -> str:
    """Return a unique temporary name for a file next to ``name``."""
    return f".{name}.{os.getpid()}.{os.urandom(6).hex()}"


def is_temporary(name: str) -> bool:
    """Return whether the name is one of ``temporary_name``."""
    return re.fullmatch(r"\..+\.\d+\.[0-9a-f]{12}", name, re.DOTALL) is not None


def make_directory(path: Path, *, shared: bool = False) -> Path:
    """Create a directory and its parents, even while others remove them.

    They are private; ``shared``: each is for the group if its parent is.
    """
    for _ in range(_MAKE_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _make_directory(path, shared=shared)
    return _make_directory(path, shared=shared)


def _make_directory(path: Path, *, shared: bool) -> Path:
    missing = []
    ancestor = path
    while not ancestor.exists():
        missing.append(ancestor)
        ancestor = ancestor.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            directory.mkdir(PRIVATE_DIRECTORY)
            if shared and is_group_shared(directory.parent.stat()):
                directory.chmod(SHARED_DIRECTORY)
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(2, "was removed while it was created", str(path))
        raise NotADirectoryError(20, "exists and is not a directory", str(path))
    return path


def why_unwritable(path: Path) -> str:
    """Return why a directory can't be created or written to, or ``""``."""
    # Path.exists() raises PermissionError
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110
        path = path.parent
    if not path.is_dir():
        return f"{path} is not a directory"
    with contextlib.suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{path} is on a read-only file system"
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=effective):
        return f"{path} is not writable by this user"
    return ""


def write_atomic(
    path: Path,
    data: Union[bytes, Iterable[bytes]],
    *,
    durable: bool = True,
    mode: int = PRIVATE_FILE,
) -> None:
    """Create or replace a file atomically, if ``durable`` surviving power cuts."""
    temporary = _write_temporary(path, data, durable=durable)
    try:
        if mode != PRIVATE_FILE:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError:
        temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create a file atomically; return False and change nothing if the name is taken.

    A killed process leaves no temporary file, except on file systems without O_TMPFILE.
    """
    try:
        _link_anonymous(path, data)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_ANONYMOUS_FILES:
            error.filename = str(path)
            raise
        return _create_by_name(path, data)
    sync_directory(path.parent)
    return True


def _link_anonymous(path: Path, data: bytes) -> None:
    """Create an unnamed file and link it; see O_TMPFILE in open(2)."""
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
        # with src_dir_fd Python calls linkat(2), which follows the symlink in /proc
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def _create_by_name(path: Path, data: bytes) -> bool:
    temporary = _write_temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_directory(path.parent)
    return True


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Create or replace a JSON file."""
    write_atomic(path, (json.dumps(value, sort_keys=True) + "\n").encode(), durable=durable)


def write_volatile(path: Path, value: Any) -> None:
    """Create or replace a JSON file in a directory that others may remove."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return write_json(make_directory(path.parent) / path.name, value, durable=False)
    return write_json(make_directory(path.parent) / path.name, value, durable=False)


def write_at(descriptor: int, offset: int, data: Union[bytes, bytearray, memoryview]) -> None:
    """Write all of the bytes at an offset of an open file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:_WRITE_BYTES], offset)
        offset += written
        view = view[written:]


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """Return the object in a JSON file; None if the file is missing or holds none."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable(paths: Iterable[Union[str, Path]], within: Path) -> None:
    """Make paths durable: a few one by one, many by syncing their file system.

    The latter costs less per file, but waits for other writers. A missing file was renamed by another process, which
    made it durable first.
    """
    pending = list(paths)
    if len(pending) > _SYNC_ONE_BY_ONE:
        _sync_file_system(within)
        return
    for path in pending:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_file_system(path: Path) -> None:
    from trainctl.base.system.syscalls import syncfs  # slow to import, rarely needed

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        syncfs(descriptor, str(path))
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> int:
    """Remove a directory tree, if it exists; return the bytes freed."""
    freed = _remove_files(str(path), None)
    shutil.rmtree(str(path), ignore_errors=True)
    if path.exists():
        shutil.rmtree(str(path))
    return freed


def _remove_files(name: str, within: Optional[int]) -> int:
    """Remove files below a directory one by one; return the bytes freed."""
    freed = 0
    with contextlib.suppress(OSError):
        with contextlib.suppress(PermissionError):
            os.chmod(name, PRIVATE_DIRECTORY, dir_fd=within)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=within)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    freed += _remove_entry(entry, descriptor)
        finally:
            os.close(descriptor)
    return freed


def _remove_entry(entry: os.DirEntry[str], within: int) -> int:
    with contextlib.suppress(OSError):
        if entry.is_dir(follow_symlinks=False):
            return _remove_files(entry.name, within)
        status = entry.stat(follow_symlinks=False)
        os.unlink(entry.name, dir_fd=within)
        return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    return 0


def list_names(path: Path) -> List[str]:
    """Return the sorted entries of a directory; empty if it doesn't exist."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def modified_at(path: Path) -> float:
    """Return the modification time in Unix seconds; 0 if the file doesn't exist."""
    try:
        return path.lstat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def _write_temporary(
    path: Path, data: Union[bytes, Iterable[bytes]], *, durable: bool = True
) -> Path:
    temporary = path.with_name(temporary_name(path.name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, PRIVATE_FILE), "wb") as stream:
            stream.writelines((data,) if isinstance(data, bytes) else data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise
    return temporary


def resolve_within(path: Path, top: Path) -> Optional[Path]:
    """Resolve a path to a regular file below ``top``; None otherwise."""
    try:
        real = path.resolve(strict=True)
        below = top.resolve() in real.parents
    except (OSError, RuntimeError):  # missing, or a symlink loop
        return None
    return real if below and real.is_file() else None


def open_file(path: str) -> Optional[BinaryIO]:
    """Open a regular file for reading; None for anything else, also symlinks."""
    try:
        stream = io.FileIO(path, opener=_open_no_follow)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return None
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    return None


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def file_mode_for(directory: Path) -> int:
    """Return the mode of new files in a directory."""
    return SHARED_FILE if is_group_shared(directory.stat()) else PRIVATE_FILE


def is_group_shared(directory: os.stat_result) -> bool:
    """Return whether files in a directory with this status are for its group."""
    return directory.st_mode & _FOR_GROUP == _FOR_GROUP
