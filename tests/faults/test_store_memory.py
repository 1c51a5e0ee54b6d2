"""How much memory the machine that copies, verifies and collects takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiers import sample

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150e6
LARGE = 256 * 2**20


@pytest.mark.parametrize(
    ("count", "size", "how"),
    sample(
        [(1, LARGE, "parts"), (1, LARGE, "stream"), (6, LARGE // 6, "stream"), (300, 900_000, "stream"), (10_000, 1000, "stream")],
        fixed=0, rotating=3,
    ),
)  # fmt: skip
def test_memory_does_not_grow_with_a_source(
    tmp_path: Path, count: int, size: int, how: str
) -> None:
    """One file by several connections and by one, several large files, and small ones, of which packs are made."""
    command = [sys.executable, "-m", "tests.support.storage.synthetic_source", str(tmp_path), str(count), str(size), how]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout)
    assert set(peaks) == {"ingest", "verify", "again", "inventory", "drop", "gc"}
    assert max(peaks.values()) < LIMIT
