"""Free disk space, and errors of disks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Optional

from trainctl.errors import NodeError, StorageError, TrainctlError

SHARING_ADVICE = "A directory that several users share must belong to their group and have mode 2770 before anything is written to it."
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_RESERVE_BYTES = 16 * 2**20
"""Kept free for everything but weights: this program, code, records."""


def from_os_error(error: OSError, root: str) -> TrainctlError:
    """Convert an error to one that is reported; ``root`` is the program's own directory."""
    path = str(error.filename or root)
    if error.errno in _DISK_FULL:
        return StorageError(
            f"no space left on the node's disk: {path}",
            f"{free_space(root)} bytes are free under {root}. Free disk space and try again; finished files are reused.",
        )
    if error.errno in _NOT_WRITABLE:
        within = Path(root) in (Path(path), *Path(path).parents)
        read = error.errno == errno.EROFS or is_readable(path)
        able = "writable" if read else "readable and writable"
        advice = f"Make {root if within else os.path.dirname(path)} {able} for user {os.geteuid()}, or choose another directory."  # noqa: PTH120
        return StorageError(
            f"cannot {'write' if read else 'use'} {path} on the node: {error.strerror}",
            advice if within else f"{advice} {SHARING_ADVICE}",
        )
    return NodeError(f"{error.strerror or error}: {path}")


def is_readable(path: str) -> bool:
    """Return whether this user may read the path or its nearest existing ancestor."""
    while not os.path.exists(path) and path != os.path.dirname(path):  # noqa: PTH110, PTH120
        path = os.path.dirname(path)  # noqa: PTH120
    mode = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK  # noqa: PTH112
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def free_space(path: str) -> Optional[int]:
    """Return the user's free bytes at the path or its nearest existing ancestor."""
    while path and not os.path.isdir(path):  # noqa: PTH112
        path = os.path.dirname(path)  # noqa: PTH120
    try:
        status = os.statvfs(path or "/")
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def space_for_weights(path: str) -> Optional[int]:
    """Return the bytes that weights may still take below the path."""
    free = free_space(path)
    return None if free is None else max(0, free - _RESERVE_BYTES)
