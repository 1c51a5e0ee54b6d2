"""What a disk that holds a state says, as an error of the state."""

from __future__ import annotations

import errno
from pathlib import Path

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
    errno.ENOTDIR: (
        "a file stands where the state's directory should be",
        "Move it away, or name another place with --state.",
    ),
}
_ADVICE[errno.EPERM] = _ADVICE[errno.EACCES]
_ADVICE[errno.EMLINK] = _ADVICE[errno.ENOTSUP]


def explained(root: Path, error: OSError) -> StateError:
    """The error that names the path and says what to do."""
    summary, advice = _ADVICE.get(
        error.errno or 0,
        (f"the state can't be used: {error.strerror or error}", "Check the disk and the path."),
    )
    return StateError(summary, f"{error.filename or root}: {advice}")
