"""Modes of files in directories that a group shares: setgid and group-writable.

Files there are for the whole group, whatever the umask; elsewhere they are private.
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
    """Create a directory and its missing parents, each shared like its parent."""
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
    """Create and open a file with the mode for its directory; return the descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE)
    os.fchmod(descriptor, file_mode_for(path.parent))
    return descriptor


def file_mode_for(directory: Path) -> int:
    """Return the mode of new files in a directory."""
    return FILE if is_group_shared(directory.stat()) else PRIVATE_FILE


def may_change_mode(descriptor: int) -> bool:
    """Return whether this user may change the mode, by trying it."""
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode))
    except OSError:
        return False
    return True


def is_group_shared(directory: os.stat_result) -> bool:
    """Return whether files in a directory with this status are for its group."""
    return directory.st_mode & _FOR_GROUP == _FOR_GROUP
