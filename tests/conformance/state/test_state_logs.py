"""The built-in logs, and the reference they are compared with, pass the suite that plugins' logs pass."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.memory_log import MemoryLog
from trainctl.plugin_api.discovery import open_state
from trainctl.plugin_api.state import StateLog
from trainctl.testing.state_log import StateLogConformance


class TestDirectory(StateLogConformance):
    @pytest.fixture
    def logs(self, tmp_path: Path) -> tuple[StateLog, StateLog]:
        url = (tmp_path / "a b%20ü" / "state").as_uri()
        return open_state(url), open_state(url)


class TestMemory(StateLogConformance):
    @pytest.fixture
    def logs(self) -> tuple[StateLog, StateLog]:
        url = f"memory:{uuid.uuid4()}"
        return open_state(url), open_state(url)


class TestReference(StateLogConformance):
    @pytest.fixture
    def logs(self) -> tuple[StateLog, StateLog]:
        log = MemoryLog()
        return log, log
