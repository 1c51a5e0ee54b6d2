"""Errors that the node program reports to its caller."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Dict, Optional

SHARING_ADVICE = "What several users share lies in a directory of their group that is setgid and group-writable (mode 2770), before anything is in it."
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_RESERVE_BYTES = 16 * 2**20
"""Left free for what isn't weights: this program, code, records."""


class Failure(Exception):
    """What could not be done, without secrets.

    ``kind``: ``request`` (malformed), ``storage`` (full, read-only, denied), ``room`` (none for weights before other runs have
    ended), ``busy``, ``fenced`` (older generation), ``origin`` (the mirror lacks a blob), ``wrong`` (its bytes don't match),
    ``checkpoints`` (their store; names it), ``missing``, ``ports``, ``requirements``, ``failed``.
    """

    def __init__(self, kind: str, summary: str, detail: str = "") -> None:
        super().__init__(summary)
        self.kind = kind
        self.summary = summary
        self.detail = detail

    def to_json(self) -> Dict[str, str]:
        """The form that travels."""
        return {"kind": self.kind, "summary": self.summary, "detail": self.detail}


class PeerAuthError(Failure):
    """Somebody else answers where a server was expected; they were told nothing."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "stranger",
            f"{where} shows another certificate than the server that was started there, and was told nothing",
            "Somebody is in between, or another program listens there.",
        )


class NoReachableAddress(Failure):
    """There is no address by which this host could ask a server: why."""

    def __init__(self, summary: str) -> None:
        super().__init__(
            "unreachable",
            summary,
            "The other host has no address at which this one could reach it.",
        )


def from_os_error(error: OSError, root: str) -> Failure:
    """Say which path failed, why, and for a full disk how much is free; ``root`` is where the program may write."""
    path = str(error.filename or root)
    if error.errno in _DISK_FULL:
        return Failure(
            "storage",
            f"no space left on the node's disk: {path}",
            f"{free_space(root)} bytes are free under {root}. Free some, then try again; what was kept is used.",
        )
    if error.errno in _NOT_WRITABLE:
        within = Path(root) in (Path(path), *Path(path).parents)
        read = error.errno == errno.EROFS or is_readable(path)
        able = "writable" if read else "readable and writable"
        advice = f"Make {root if within else os.path.dirname(path)} {able} for user {os.geteuid()}, or choose another directory."  # noqa: PTH120
        return Failure(
            "storage",
            f"the node may not {'write' if read else 'use'} {path}: {error.strerror}",
            advice if within else f"{advice} {SHARING_ADVICE}",
        )
    return Failure("failed", f"{error.strerror or error}: {path}")


def is_readable(path: str) -> bool:
    """Whether this user may read the path, or else the nearest directory of it that can be seen."""
    while not os.path.exists(path) and path != os.path.dirname(path):  # noqa: PTH110, PTH120
        path = os.path.dirname(path)  # noqa: PTH120
    mode = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK  # noqa: PTH112
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def free_space(path: str) -> Optional[int]:
    """Bytes that this user may still write below the path, or below its nearest existing ancestor."""
    while path and not os.path.isdir(path):  # noqa: PTH112
        path = os.path.dirname(path)  # noqa: PTH120
    try:
        found = os.statvfs(path or "/")
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def space_for_weights(path: str) -> Optional[int]:
    """Bytes that weights may still take below the path; what plans count with and deliveries insist on."""
    free = free_space(path)
    return None if free is None else max(0, free - _RESERVE_BYTES)
