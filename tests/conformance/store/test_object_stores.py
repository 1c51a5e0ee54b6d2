"""Directories, of mirrors and of states, and memory pass the suite of object stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.base.objects import ObjectStore, is_key
from trainctl.store.objects import DirectoryObjects, MemoryObjects
from trainctl.testing.object_store import ObjectStoreConformance


class TestDirectory(ObjectStoreConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> tuple[ObjectStore, ObjectStore]:
        root = tmp_path / "new" / "state"
        return DirectoryObjects(root, is_key), DirectoryObjects(root, is_key)


class TestMemory(ObjectStoreConformance):
    @pytest.fixture
    def stores(self) -> tuple[ObjectStore, ObjectStore]:
        store = MemoryObjects()
        return store, store
