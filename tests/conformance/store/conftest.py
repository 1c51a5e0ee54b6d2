from __future__ import annotations

import pytest

from trainctl.base.objects import ObjectStore
from trainctl.store import lease
from trainctl.store.memory import MemoryObjects


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_SETTLE_SECONDS", 0)


@pytest.fixture(params=["memory"])
def objects(request: pytest.FixtureRequest) -> ObjectStore:
    return MemoryObjects()
