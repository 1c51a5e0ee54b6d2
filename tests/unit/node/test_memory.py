"""How much memory a node takes for each of very many files: some bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory import MOST, growth

pytestmark = pytest.mark.long


@pytest.mark.parametrize("what", ["peers", "verify", "room", "removal", "shared"])
def test_memory_grows_by_some_bytes_a_file(tmp_path: Path, what: str) -> None:
    """Where peers share parts out, a cache is verified, all of it makes room that a live run refused before, a directory is removed, and a shared cache is used and left."""
    assert growth(what, tmp_path) < MOST
