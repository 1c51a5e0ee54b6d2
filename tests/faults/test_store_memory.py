"""How much memory the machine that copies, verifies and collects takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150e6
LARGE = 256 * 2**20


@pytest.mark.parametrize(
    ("count", "size", "how"),
    [
        (1, LARGE, "parts"),
        (10_000, 1000, "stream"),
        pytest.param(1, LARGE, "stream", marks=pytest.mark.long),
        pytest.param(300, 900_000, "stream", marks=pytest.mark.long),
    ],
)
def test_memory_does_not_grow_with_a_source(
    tmp_path: Path, count: int, size: int, how: str
) -> None:
    """Of one file by several connections or by one, of files in blobs of their own, and of small ones in packs."""
    command = [sys.executable, "-m", "tests.support.storage.store_process", str(tmp_path), "measure", str(count), str(size), how]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout)
    assert set(peaks) == {"ingest", "verify", "again", "inventory", "drop", "gc"}
    assert max(peaks.values()) < LIMIT
