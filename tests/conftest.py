"""What all tests share."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Iterator

import pytest

from trainctl.weights.mirror import sums


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """A closed terminal is told to programs, also where the tests were begun with ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def only_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRCs are computed by what a host has."""
    monkeypatch.setattr(sums, "_crc", {"crc32": zlib.crc32}.get)
