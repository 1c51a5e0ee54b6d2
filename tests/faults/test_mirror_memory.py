from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.bucket_mirrors import place_in
from tests.support.buckets import rclone
from tests.support.hub import serve

ROOT = Path(__file__).resolve().parents[2]
SIZE = 400 * 2**20


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file larger than the limit is mirrored within 200 MB of memory."""
    big = tmp_path / "big"
    with big.open("wb") as out:
        out.truncate(SIZE)
    with serve() as hub:
        hub.add("acme/model", {"w.bin": big})
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.mirroring", str(tmp_path / "mirror"), hub.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    assert json.loads(done.stdout.splitlines()[-1])["peak"] < 200e6 < SIZE


def test_memory_does_not_grow_with_an_object_that_is_put(tmp_path: Path) -> None:
    """A listing of millions of files is one: what was sent of it stays with the disk."""
    long = tmp_path / "long"
    with long.open("wb") as out:
        out.truncate(SIZE)
    with rclone(tmp_path / "root") as bucket:
        url, environ, credential = place_in(bucket, "pre")
        words = url, json.dumps(environ), credential, "key", str(long)
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.long_objects", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (tmp_path / "root" / "models" / "pre" / "key").stat().st_size == SIZE
    assert int(done.stdout) < 300e6 < SIZE
