"""A state on a disk that is full, read-only or forbidden."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.weights_project import remount, small_disk
from tests.support.storage.ledgers import PREP, begin, ledger_on, record
from trainctl.errors import StateError
from trainctl_state import open_directory


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "128k") as path:
        yield path


def test_a_full_disk_loses_nothing(disk: Path) -> None:
    """The append that doesn't fit is an error that says what to do; what was written before is read; with room it goes on."""
    ballast = disk / "ballast"
    ledger = ledger_on(open_directory((disk / "state").as_uri()))
    intent = begin(ledger)
    ballast.write_bytes(b"x" * 60_000)

    def fill() -> None:
        for number in range(1000):
            ledger.note("x" * 3000 + str(number))

    with pytest.raises(StateError, match="no space left") as caught:
        fill()
    assert "Free disk space" in caught.value.detail
    assert str(disk) in caught.value.detail
    assert list((disk / "state" / ".tmp").iterdir()) == []
    fresh = ledger_on(open_directory((disk / "state").as_uri()))
    assert fresh.state() == ledger.state()
    ballast.unlink()
    ledger.finish(intent, record())
    assert fresh.state().serial == 1


def test_a_read_only_disk_can_be_read(disk: Path) -> None:
    url = (disk / "state").as_uri()
    begin(ledger_on(open_directory(url)))
    remount(disk, "ro")
    ledger = ledger_on(open_directory(url))
    assert len(ledger.state().open_intents) == 1
    with pytest.raises(StateError, match="read-only"):
        begin(ledger, PREP)


def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    url = (tmp_path / "state").as_uri()
    begin(ledger_on(open_directory(url)))
    if os.getuid() != 0:
        (tmp_path / "state" / "log").chmod(0)
        with pytest.raises(StateError, match="permission denied"):
            open_directory(url).read()
        (tmp_path / "state" / "log").chmod(0o700)
        return
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            open_directory(url).read()
        except StateError as error:
            os._exit(17 if "permission denied" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
