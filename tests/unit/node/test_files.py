"""Files that are whole or not there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from trainctl.node.system.files import create_once


def test_who_is_killed_before_a_file_has_its_name_leaves_nothing(tmp_path: Path) -> None:
    """Neither the file nor a part of it under another name."""
    pid = os.fork()
    if pid == 0:
        os.link = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        try:
            create_once(tmp_path / "claim", b"mine")
        finally:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_created_once_where_none_can_be_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a temporary name then, which goes."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # as from before Linux 3.11: EISDIR

    assert create_once(tmp_path / "claim", b"mine")
    assert not create_once(tmp_path / "claim", b"yours")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
