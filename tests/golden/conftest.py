"""Screens: text files next to the tests. Refresh with ``pytest --snapshot-update`` and read the difference."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import Screen


@pytest.fixture
def screen(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """Compares with the text file of this test."""
    return snapshot.use_extension(Screen)
