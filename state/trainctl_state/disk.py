"""Durable writing, and what to do about a disk that won't."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainctl.errors import StateError

_FULL = "Free some space there and run the command again; what was written before is intact."
_ADVICE = {
    errno.ENOSPC: ("the disk that holds the state is full", _FULL),
    errno.EDQUOT: ("the disk quota of the state's directory is used up", _FULL),
    errno.EROFS: (
        "the state is on a read-only file system",
        "Mount it writable, or name another place with --state.",
    ),
    errno.EACCES: (
        "this user may not use the state's directory",
        "Give this user the right to it, or name another place with --state.",
    ),
    errno.ENOTSUP: (
        "the file system of the state's directory has no hard links",
        "Keep the state on another file system: name one with --state.",
    ),
    errno.ENOENT: (
        "a file vanished while it was being written",
        "Nothing was written; run the command again. Nothing but trainctl may tidy up the state's directory.",
    ),
}
_ADVICE[errno.EPERM] = _ADVICE[errno.EACCES]
_ADVICE[errno.EMLINK] = _ADVICE[errno.ENOTSUP]
_WITHOUT_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


@contextmanager
def explain(path: str) -> Iterator[None]:
    """Turn what the file system says into a StateError that names the path and says what to do."""
    try:
        yield
    except OSError as error:
        summary, advice = _ADVICE.get(
            error.errno or 0,
            (f"the state can't be used: {error.strerror or error}", "Check the disk and the path."),
        )
        raise StateError(summary, f"{path}: {advice}") from error


def write_synced(path: str, data: bytes, *, sync: bool) -> None:
    """Write a new file, 0600, and wait until it is on the disk if ``sync``."""
    handle = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if sync:
            _sync(handle)
    finally:
        os.close(handle)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable; some file systems need and offer nothing for it."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(handle)
    except OSError as error:
        if error.errno not in _WITHOUT_DIRECTORY_SYNC:
            raise
    finally:
        os.close(handle)


def _sync(handle: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone leaves it in the drive's cache
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)
