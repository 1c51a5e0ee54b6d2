"""How much memory sources and mirrors take for each of very many files: some bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory import MOST, growth

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "what", ["files", "mirror", "twice", "again", "collect", "anew", "verify", "wrong", "repair"]
)
def test_memory_grows_by_some_bytes_a_file(tmp_path: Path, what: str) -> None:
    """Where a directory is resolved, a source is mirrored, also once more, a plan asks what of it is there, what nobody needs goes, also from within packs,
    and what is there is verified, right, wrong, or mended."""
    assert growth(what, tmp_path, "tests.support.mirror_memory") < MOST
