"""The built-in object stores pass the suite that plugins' stores pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.spi.objects import ObjectStore
from trainctl.testing.object_store import ObjectStoreConformance
from trainctl_state.directory import DirectoryStore
from trainctl_state.memory import MemoryStore


class TestDirectoryStore(ObjectStoreConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> tuple[ObjectStore, ObjectStore]:
        return DirectoryStore(tmp_path / "new" / "state"), DirectoryStore(tmp_path / "new/state")


class TestMemoryStore(ObjectStoreConformance):
    @pytest.fixture
    def stores(self) -> tuple[ObjectStore, ObjectStore]:
        store = MemoryStore()
        return store, store
