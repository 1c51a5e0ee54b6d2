from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.base.objects import ObjectStore
from trainctl.store import lease
from trainctl.store.directory import DirectoryObjects
from trainctl.store.memory import MemoryObjects


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_SETTLE_SECONDS", 0)


@pytest.fixture(params=["memory", "directory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryObjects() if request.param == "memory" else DirectoryObjects(tmp_path / "store")
