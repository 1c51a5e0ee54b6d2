"""Places that several users of a group share: what is made there is for all of them, whatever the umask says.

Whoever declared such a place made it so: setgid, and writable by its group. Everywhere else what is made is its user's alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainctl.node.system.files import PRIVATE_DIRECTORY, PRIVATE_FILE

_FOR_GROUP = stat.S_ISGID | stat.S_IWGRP
_DIRECTORY = 0o2770
_FILE = 0o660


def file_mode(directory: Path) -> int:
    """The mode of new files in a directory."""
    return _FILE if _is_for_group(directory) else PRIVATE_FILE


def make_directory(path: Path) -> Path:
    """Make the directory and what is missing above it, each like the one above it."""
    if not path.is_dir():
        make_directory(path.parent)
        try:
            path.mkdir(PRIVATE_DIRECTORY)
        except FileExistsError:
            if not path.is_dir():
                raise
            return path
        if _is_for_group(path.parent):
            path.chmod(_DIRECTORY)
    return path


def create(path: Path, flags: int) -> int:
    """Open a file, which need not be there yet and is this user's."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    if _is_for_group(path.parent):
        os.fchmod(descriptor, _FILE)
    return descriptor


def is_ours(path: Path) -> bool:
    """Whether this user may change something's mode. It is tried, as the owner's number may be another where a server tells it."""
    try:
        path.chmod(stat.S_IMODE(path.stat().st_mode))
    except OSError:
        return False
    return True


def only_ours(directory: Path) -> bool:
    """Whether nobody but this user may put anything into the directory; into one that isn't there nobody has."""
    try:
        status = directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.geteuid() and not status.st_mode & others


def _is_for_group(directory: Path) -> bool:
    return directory.stat().st_mode & _FOR_GROUP == _FOR_GROUP
