"""Files that are complete or absent, and trees that are removed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from trainctl.base.filesystem.files import create_exclusive, remove_tree


def test_a_process_killed_before_a_file_has_its_name_leaves_nothing(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os.link = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        try:
            create_exclusive(tmp_path / "claim", b"mine")
        finally:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_tree_is_removed_but_no_target_of_its_links(tmp_path: Path) -> None:
    """Freed are the bytes that have no name elsewhere."""
    tree, other = tmp_path / "tree", tmp_path / "other"
    for directory in (tree / "deep" / "er", other):
        directory.mkdir(parents=True)
    (other / "stays").write_bytes(b"12345")
    (tree / "linked").hardlink_to(other / "stays")
    (tree / "alone").write_bytes(b"123")
    (tree / "deep" / "twice").write_bytes(b"1234567")
    (tree / "deep" / "er" / "again").hardlink_to(tree / "deep" / "twice")
    (tree / "to-a-directory").symlink_to(other)
    (tree / "to-nothing").symlink_to("nothing")
    for directory in (tree / "deep" / "er", tree / "deep", tree):
        directory.chmod(0o000)

    assert remove_tree(tree) == 3 + 7
    assert not tree.exists()
    assert (other / "stays").read_bytes() == b"12345"
    assert remove_tree(tree) == 0
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(OSError, match="symbolic link"):
        remove_tree(tmp_path / "link")
    assert (other / "stays").exists()
