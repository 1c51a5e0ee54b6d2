"""State logs in a directory, in a bucket and in memory.

Begin with ``open_directory``. ``log`` implements the log over any object store, with snapshots and packs of its history, and has
names and formats of the objects; ``bucket_log`` needs few requests. DESIGN.md lists the invariants.
"""

from __future__ import annotations

import errno
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from trainctl.base.objects import ObjectStore, is_key
from trainctl.errors import StateError, UsageError
from trainctl.plugin_api.state import StateLog
from trainctl.store.objects import DirectoryObjects, MemoryObjects
from trainctl_state.bucket_log import BucketLog
from trainctl_state.log import ObjectLog

__all__ = [
    "BucketLog",
    "ObjectLog",
    "directory_objects",
    "open_bucket",
    "open_directory",
    "open_memory",
]

_in_memory: dict[str, MemoryObjects] = {}


def open_directory(url: str) -> StateLog:
    """Open the log in ``file:///absolute/path``, created by the first append."""
    path = unquote(url.removeprefix("file:").removeprefix("//").removeprefix("localhost"))
    if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
        raise UsageError(
            f"{url!r} is not a directory for the state",
            "Use file:// and an absolute path, for example file:///srv/team/state.",
            code="invalid-location",
        )
    return ObjectLog(directory_objects(Path(path)), url)


def directory_objects(root: Path) -> DirectoryObjects:
    """Return the objects of a state in a directory, which the first write creates."""
    return DirectoryObjects(root, is_key, _explained)


def open_bucket(url: str, objects: ObjectStore) -> StateLog:
    """Open the log in a bucket, through the opened objects below its URL."""
    return BucketLog(objects, url)


def open_memory(url: str) -> StateLog:
    """Open the log ``memory:NAME``, which ends with this process."""
    name = url.partition(":")[2].strip("/")
    return ObjectLog(_in_memory.setdefault(name, MemoryObjects()), url)


_FULL = "Free disk space there and run the command again. Existing data is intact."
_ADVICE = {
    errno.ENOSPC: ("no space left on the disk of the state", _FULL),
    errno.EDQUOT: ("disk quota exceeded in the state's directory", _FULL),
    errno.EROFS: (
        "the state is on a read-only file system",
        "Mount it writable, or use another location with --state.",
    ),
    errno.EACCES: (
        "permission denied in the state's directory",
        "Give this user write access, or use another location with --state.",
    ),
    errno.ENOTSUP: (
        "the file system of the state's directory doesn't support hard links",
        "Use another file system: set its location with --state.",
    ),
    errno.ENOENT: (
        "a file of the state was deleted while it was being written",
        "Run the command again; nothing was written. Don't let other programs clean up the state's directory.",
    ),
    errno.ENOTDIR: (
        "the state's directory is a file",
        "Move the file, or use another location with --state.",
    ),
}
_ADVICE[errno.EPERM] = _ADVICE[errno.EACCES]
_ADVICE[errno.EMLINK] = _ADVICE[errno.ENOTSUP]


def _explained(root: Path, error: OSError) -> StateError:
    """Return an error with the path and a remedy."""
    summary, advice = _ADVICE.get(
        error.errno or 0,
        (f"cannot use the state: {error.strerror or error}", "Check the disk and the path."),
    )
    return StateError(summary, f"{error.filename or root}: {advice}")
