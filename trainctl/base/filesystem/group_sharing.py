"""Places that several users of a group share: what is made there is for all of them, whatever the umask says.

Whoever declared such a place made it so: setgid, and writable by its group. Everywhere else what is made is its user's alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainctl.base.filesystem.files import PRIVATE_DIRECTORY, PRIVATE_FILE

DIRECTORY = 0o2770
FILE = 0o660
_FOR_GROUP = stat.S_ISGID | stat.S_IWGRP


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
        if is_group_shared(path.parent.stat()):
            path.chmod(DIRECTORY)
    return path


def create_file(path: Path) -> int:
    """Create a file, open for reading and writing, for those for whom its directory is."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE)
    os.fchmod(descriptor, file_mode_for(path.parent))
    return descriptor


def file_mode_for(directory: Path) -> int:
    """The mode of files that are created in a directory."""
    return FILE if is_group_shared(directory.stat()) else PRIVATE_FILE


def may_change_mode(descriptor: int) -> bool:
    """Whether this user may change the mode of what is open. It is tried, as the owner's number may be another where a server tells it."""
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode))
    except OSError:
        return False
    return True


def is_group_shared(directory: os.stat_result) -> bool:
    """Whether what is made in a directory with this status is for its group."""
    return directory.st_mode & _FOR_GROUP == _FOR_GROUP
