"""How much memory a mirror in a bucket takes for each of very many files: some bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory import MOST, growth

pytestmark = pytest.mark.integration

WHAT = (
    "mirror", "alone", "newer", "list", "collect", "collect alone", "anew", "verify", "verify alone", "wrong", "repair", "links",
)  # fmt: skip


@pytest.mark.parametrize("what", WHAT)
def test_memory_grows_by_some_bytes_a_file(tmp_path: Path, what: str) -> None:
    """Where a source is mirrored, into packs or as objects; a plan asks for another version of it; what is there is listed, collected,
    verified, right, wrong or mended; and a delivery asks where all of it is."""
    assert growth(what, tmp_path, "tests.support.bucket_memory") < MOST
