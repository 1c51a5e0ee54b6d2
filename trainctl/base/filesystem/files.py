"""Files that are whole or not there: written under a unique name, synced, then renamed or linked into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
"""What is said where files can't be without a name, or can't get one: by the file system, or as there is no /proc."""
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""Errors of opening nothing, a link, a socket or a directory."""
_MAKE_ATTEMPTS = 10
_WRITE_BYTES = 2**18
"""At a time. For a MiB and more Linux takes large folios (6.18, ext4), in a virtual machine often of memory that it never used and first has to be given: that takes six times as long."""


def temporary_name(name: str) -> str:
    """A unique temporary name for a file beside ``name``."""
    return f".{name}.{os.getpid()}.{os.urandom(6).hex()}"


def is_temporary(name: str) -> bool:
    """Whether ``temporary_name`` made the name."""
    return re.fullmatch(r"\..+\.\d+\.[0-9a-f]{12}", name, re.DOTALL) is not None


def make_directory(path: Path) -> Path:
    """Make a private directory and its missing parents. FileNotFoundError if another removes it again and again."""
    for _ in range(_MAKE_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _make_directory(path)
    return _make_directory(path)


def _make_directory(path: Path) -> Path:
    missing = []
    step = path
    while not step.exists():
        missing.append(step)
        step = step.parent
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            one.mkdir(PRIVATE_DIRECTORY)
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(2, "was removed while it was made", str(path))
        raise NotADirectoryError(20, "is in the way and is not a directory", str(path))
    return path


def why_unwritable(path: Path) -> str:
    """Why a directory can't be made, or written to if it is there, as far as that can be told without trying; empty where it can."""
    # A Path's own exists() fails where it may not look.
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110
        path = path.parent
    if not path.is_dir():
        return f"{path} is not a directory"
    with contextlib.suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{path} lies on a read-only file system"
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=effective):
        return f"{path} may not be written by this user"
    return ""


def write_atomic(
    path: Path,
    data: Union[bytes, Iterable[bytes]],
    *,
    durable: bool = True,
    mode: int = PRIVATE_FILE,
) -> None:
    """Create or replace a file, of bytes or of pieces: readers see the old bytes or the new, also after a power cut unless it need not be durable."""
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
    """Create a file with its content at once; False, and nothing changed, if the name is taken.

    Who is killed in between leaves nothing, except on a file system that has no files without names.
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
    """open(2): O_TMPFILE, and how such a file gets a name."""
    if not hasattr(os, "O_TMPFILE"):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        sync(descriptor)
        # With a descriptor it is linkat(2), which follows the name in /proc; link(2) would not.
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
    """Create or replace a JSON file in a directory that may vanish at any moment; it need not survive a power cut."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return write_json(make_directory(path.parent) / path.name, value, durable=False)
    return write_json(make_directory(path.parent) / path.name, value, durable=False)


def write_at(descriptor: int, offset: int, data: Union[bytes, bytearray, memoryview]) -> None:
    """Put all of the bytes at their place in an open file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:_WRITE_BYTES], offset)
        offset += written
        view = view[written:]


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """The object in a JSON file; None if there is no such file or it holds none."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Make an open file or directory durable. macOS leaves it in the drive's cache unless told otherwise: fcntl(2) there."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def make_durable(paths: Iterable[Union[str, Path]], within: Path) -> None:
    """Make files and directories durable: a few one by one, many by one sync of the file system they are in.

    The latter costs less per file, and waits for what everybody else has written there. A file that is gone was
    given its final name by another process, which made it durable first.
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
            sync(descriptor)
        finally:
            os.close(descriptor)


def _sync_file_system(path: Path) -> None:
    from trainctl.base.system.syscalls import syncfs  # heavy, and few have so many files

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        syncfs(descriptor, str(path))
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> int:
    """Remove a directory with all it holds, read-only parts too; the bytes that only it held. No error if it is gone."""
    freed = _remove_files(str(path), None)
    shutil.rmtree(str(path), ignore_errors=True)
    if path.exists():
        shutil.rmtree(str(path))
    return freed


def _remove_files(name: str, within: Optional[int]) -> int:
    """Remove the files below a directory one by one, as it may have millions; the bytes that they alone held. What can't be removed stays."""
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
        found = entry.stat(follow_symlinks=False)
        os.unlink(entry.name, dir_fd=within)
        return found.st_size if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0
    return 0


def list_names(path: Path) -> List[str]:
    """The entries of a directory, sorted; none if there is no such directory."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def modified_at(path: Path) -> float:
    """When a file was last written or touched, in Unix seconds; 0 if there is no such file."""
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
    """The regular file that a path leads to, through links if need be; None if it is not below ``top``."""
    try:
        real = path.resolve(strict=True)
        below = top.resolve() in real.parents
    except (OSError, RuntimeError):  # it leads nowhere, or round in circles
        return None
    return real if below and real.is_file() else None


def open_file(path: str) -> Optional[BinaryIO]:
    """A regular file, opened for reading; None if there is none with that very name, such as a link."""
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
