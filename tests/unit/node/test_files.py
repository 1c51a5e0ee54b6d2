"""Files that are whole or not there."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.support.machines.permissions import unreadable
from trainctl.base.filesystem.files import (
    create_exclusive,
    make_directory,
    remove_tree,
    why_unwritable,
)


def test_who_is_killed_before_a_file_has_its_name_leaves_nothing(tmp_path: Path) -> None:
    """Neither the file nor a part of it under another name."""
    pid = os.fork()
    if pid == 0:
        os.link = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        try:
            create_exclusive(tmp_path / "claim", b"mine")
        finally:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_created_once_where_none_can_be_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a temporary name then, which goes."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # as from before Linux 3.11: EISDIR

    assert create_exclusive(tmp_path / "claim", b"mine")
    assert not create_exclusive(tmp_path / "claim", b"yours")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


def test_a_tree_is_removed_and_nothing_behind_its_links(tmp_path: Path) -> None:
    """Read-only parts too; what counts are the bytes that had no name elsewhere."""
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


def test_a_link_to_a_directory_is_no_tree(tmp_path: Path) -> None:
    """Nothing of where it leads goes."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "stays").touch()
    (tmp_path / "link").symlink_to("other")

    with pytest.raises(OSError, match="symbolic link"):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "other" / "stays").exists()


def test_where_a_directory_can_be_made_is_told_without_making_it(tmp_path: Path) -> None:
    """Below a file it can't, nor where the user may not write; what is there already counts as it is."""
    (tmp_path / "file").write_text("")

    assert why_unwritable(tmp_path) == why_unwritable(tmp_path / "a" / "b") == ""
    assert why_unwritable(tmp_path / "file") == f"{tmp_path / 'file'} is not a directory"
    assert (
        why_unwritable(tmp_path / "file" / "a" / "b") == f"{tmp_path / 'file'} is not a directory"
    )
    assert why_unwritable(Path("/dev/null/a")) == "/dev/null is not a directory"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_that_others_own_is_told(tmp_path: Path) -> None:
    """Also where only what is above it is there."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        top.chmod(0o755)
        (top / "closed").mkdir()
        with unreadable(top / "closed", top):
            found = why_unwritable(top / "closed" / "a")

    assert found == f"{top / 'closed'} is not writable by this user"


def test_a_directory_is_made_though_another_sweeps_empty_ones_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last project to leave a machine does while the next one comes."""
    swept: list[Path] = []
    mkdir = Path.mkdir

    def swept_at_first(path: Path, mode: int) -> None:
        if path.name == "mine" and len(swept) < 3:
            swept.append(path)
            path.parent.rmdir()
        mkdir(path, mode)

    monkeypatch.setattr(Path, "mkdir", swept_at_first)
    assert make_directory(tmp_path / "references" / "mine").is_dir()
    assert len(swept) == 3
