"""Directories that may not be read, also where tests run as root, whom nothing is forbidden."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def unreadable(path: Path, tree: Path) -> Iterator[None]:
    """One directory of a tree may not be read meanwhile; all else there may, and be written.

    The tree must be reachable for other users: root is nobody meanwhile, and the tree's owner.
    """
    mode = path.stat().st_mode
    path.chmod(0)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            _give(tree, _NOBODY)
            os.seteuid(_NOBODY)
        yield
    finally:
        if is_root:
            os.seteuid(0)
            _give(tree, 0)
        path.chmod(mode)


def _give(tree: Path, user: int) -> None:
    for value in (tree, *tree.rglob("*")):
        os.chown(value, user, -1, follow_symlinks=False)


GROUP = 65533
ONE, OTHER = 65534, 65532


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """As a member of the group, with a umask that leaves others nothing. Only root can be."""
    before = os.getegid()
    mask = os.umask(0o077)
    os.setegid(GROUP)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)
        os.umask(mask)


@contextmanager
def place_of_group(mode: int = 0o2770) -> Iterator[Path]:
    """An empty directory of the group."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        place = Path(top) / "group"
        place.mkdir()
        os.chown(place, 0, GROUP)
        place.chmod(mode)
        yield place
