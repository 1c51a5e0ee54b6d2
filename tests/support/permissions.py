"""Directories that may not be read, also where tests run as root, whom nothing is forbidden."""

from __future__ import annotations

import os
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
    for one in (tree, *tree.rglob("*")):
        os.chown(one, user, -1, follow_symlinks=False)
