"""Temporary files on a full disk."""

from __future__ import annotations

import errno
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from tests.support.wanting import small_disk
from trainctl.base.temporary import named_if_full, temporary_file


class Owner: ...


def fill(file: IO[bytes]) -> None:
    with named_if_full():
        file.write(bytes(20_000))
        file.write(bytes(6_000))
        file.flush()


def test_what_a_full_disk_had_no_room_for_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever writes: when the file goes, with what is left in its buffer, nothing is said."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with small_disk(tmp_path / "small", "16k") as place:
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        owner = Owner()
        file = temporary_file(owner)
        with pytest.raises(OSError, match="No space left") as refused:
            fill(file)
        assert refused.value.errno == errno.ENOSPC
        assert refused.value.filename == str(place)
        del owner
        assert file.closed
    assert told == []
