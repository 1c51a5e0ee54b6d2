"""The mirror's disk: what it must have before a transfer, and what its refusals mean."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainctl.base import below
from trainctl.base.exclusive import holder_name
from trainctl.base.failure import HOW_TO_SHARE, may_be_read
from trainctl.base.units import format_bytes
from trainctl.errors import StorageError

SPARE_BYTES = 64 * 2**20

FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_ATTEMPTS = 5


@contextlib.contextmanager
def explained(root: Path) -> Iterator[None]:
    """Turn what the disk refuses into StorageError that names the mirror and says what to do."""
    try:
        yield
    except OSError as error:
        raise _explanation(root, error) from error


def _explanation(root: Path, error: OSError) -> StorageError:
    if error.errno in FULL:
        return StorageError(
            f"the disk of the mirror {root} {_refusal(root, error)}",
            "Free some space, or name another place in mirror: {url: …}. "
            "What has arrived is kept; the next apply carries on from there.",
            code="disk-full",
        )
    if error.errno == errno.EROFS:
        return StorageError(
            f"the mirror {root} lies on a read-only file system",
            "Mount it writable, or name another place in mirror: {url: …}.",
        )
    if error.errno in _FORBIDDEN:
        path = str(error.filename or root)
        done = "written" if may_be_read(path) else "used"
        return StorageError(
            f"the mirror {root} may not be {done} by this user ({path})",
            f"Give this user the right to, or name another place in mirror: {{url: …}}. {HOW_TO_SHARE}",
        )
    if error.errno == errno.ENOTDIR and error.filename and os.path.islink(error.filename):  # noqa: PTH114
        return StorageError(
            f"{error.filename} is a link, and no part of the mirror {root}: links in it are not followed",
            "Remove the link, or put what it leads to in its place. Where the whole mirror is to lie elsewhere, name that place in mirror: {url: …}.",
        )
    return StorageError(
        f"the mirror {root}: {error.strerror or error} ({error.filename or root})",
        "Check the disk; nothing incomplete was given a final name.",
    )


def _refusal(root: Path, error: OSError) -> str:
    """What there is too little of: where bytes are free it is the number of files, or this user's quota."""
    free = free_bytes(root)
    if error.errno == errno.EDQUOT:
        return "has no more room for this user (disk quota)"
    return (
        f"is full ({format_bytes(free)} free)" if free < SPARE_BYTES else "can hold no more files"
    )


def require_space(root: Path, missing: int) -> None:
    """StorageError unless the disk has room for what is missing, in bytes."""
    free = free_bytes(root)
    if missing and missing + SPARE_BYTES > free:
        raise StorageError(
            f"the mirror {root} needs {format_bytes(missing + SPARE_BYTES)} and its disk has {format_bytes(free)} free",
            "Free some space, or name another place in mirror: {url: …}. Nothing was transferred.",
            code="disk-full",
        )


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk of the nearest existing directory, in bytes."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def write_out(descriptor: int, offset: int, length: int) -> None:
    """Have the kernel begin to bring these bytes to the disk, so that the sync at the end has less to wait for."""
    if hasattr(os, "posix_fadvise"):  # of what isn't on the disk yet it drops nothing
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def scratch_name() -> str:
    """A file name that no other process uses, and that tells whose it is."""
    return f"tmp.{holder_name()}.{secrets.token_hex(8)}"


def write_record(
    path: Path, data: bytes | Iterable[bytes], scratch: Path, *, durable: bool = True
) -> None:
    """Create or replace a small file of a mirror at once. ``scratch`` is its directory for what isn't whole.

    One that is not ``durable`` may be lost, or empty, after a power cut.
    """
    root, temporary = scratch.parent, scratch / scratch_name()
    try:
        with os.fdopen(below.create(root, temporary, os.O_WRONLY | os.O_EXCL), "wb") as stream:
            stream.writelines([data] if isinstance(data, bytes) else data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        _rename(root, temporary, path, durable=durable)
    except BaseException:
        below.remove(root, temporary)
        raise
    if durable:
        with contextlib.suppress(FileNotFoundError):  # somebody has removed record and directory
            sync_directory(root, path.parent)


def _rename(root: Path, temporary: Path, path: Path, *, durable: bool) -> None:
    """Into a directory that somebody else may remove while it is empty."""
    for _ in range(_ATTEMPTS):
        below.make_directory(root, path.parent, durable=durable)
        with contextlib.suppress(FileNotFoundError):
            below.move(root, temporary, path)
            return
    below.move(root, temporary, path)


def sync_directory(root: Path, path: Path) -> None:
    """Make names that appeared in a directory of a mirror survive a power cut."""
    with below.opened(root, path) as descriptor:
        os.fsync(descriptor)
