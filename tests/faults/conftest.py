"""What tests of kills share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.verb_forks import VerbForkServer


@pytest.fixture
def zygote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerbForkServer]:
    """What starts runs whose supervisors die; all its processes are known by the test's directory."""
    monkeypatch.setenv("STARTED_BELOW", str(tmp_path))
    server = VerbForkServer()
    yield server
    server.close()
