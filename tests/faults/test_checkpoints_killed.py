"""The uploader killed at every point: what is listed as complete is whole, and the next one carries on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.buckets import Bucket, moto
from tests.support.checkpointing import PREFIX, SavedRun, restored
from trainctl.node.kept import COMPLETE
from trainctl.node.s3 import S3Store, _uploads
from trainctl.node.store import DirectoryStore, Store, open_store

FIRST = {
    "checkpoint-1": {"model.bin": b"one" * 1000, "deep/state.json": b"{}"},
    "checkpoint-2": {"model.bin": b"two" * 1000, "empty": b""},
}
SECOND = {"checkpoint-2": {"model.bin": b"TWO" * 1000, "empty": b"", "new": b"n"}}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket of moto."""
    with moto() as one:
        yield one


def die(base: Path, lethal: int) -> int:
    """Upload, and die before that effect; the number of effects if 0."""
    count = base / "count"
    words = [
        sys.executable,
        "-m",
        "tests.support.checkpointing",
        str(lethal),
        str(count),
        str(base),
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    if lethal == 0:
        assert done.returncode == 0, done.stderr
        return int(count.read_text())
    assert done.returncode in (0, -9), done.stderr
    return 0


def saved(base: Path, place: dict[str, Any], secrets: dict[str, str]) -> SavedRun:
    """A run with the first checkpoints."""
    base.mkdir()
    (base / "run.json").write_text(json.dumps({"place": place, "secrets": secrets}))
    run = SavedRun(base, place, secrets)
    for name, files in FIRST.items():
        run.save(name, files)
    return run


def rewrite(run: SavedRun) -> None:
    """The job saves one of them once more, otherwise."""
    for name, files in SECOND.items():
        run.save(name, files)


def check(store: Store) -> None:
    """What is complete is one version or the other, never a mixture."""
    for name, files in restored(store).items():
        assert files in (FIRST[name], SECOND.get(name)), name


def check_end(store: Store, run: SavedRun) -> None:
    """All of it is there, in its last version, and nothing else."""
    assert restored(store) == {**FIRST, **SECOND}
    named = {
        file["key"]
        for one in store.list(f"{PREFIX}/{COMPLETE}/")
        for file in json.loads(store.get(one.key) or b"")["files"]
    }
    objects = {one.key for one in store.list("") if COMPLETE not in one.key}
    assert objects == {*named, f"{PREFIX}/run.json"}
    assert json.loads((run.run.directory / "sync.json").read_text())["state"] == "COMPLETED"


def _points(effects: int, most: int) -> list[int]:
    step = max(1, effects // most)
    return list(range(1, effects + 1, step))


def _try_all(tmp_path: Path, place: Any, secrets: dict[str, str], most: int) -> None:
    """Kill the first upload, then the one of the rewritten checkpoint, at each point in turn."""
    counted = saved(tmp_path / "count", place(0), secrets)
    first = die(counted.base, 0)
    rewrite(counted)
    second = die(counted.base, 0)
    assert first > 8
    assert second > 4
    for number, (rewritten, lethal) in enumerate(
        [*((False, n) for n in _points(first, most)), *((True, n) for n in _points(second, most))],
        1,
    ):
        run = saved(tmp_path / str(number), place(number), secrets)
        with closing(open_store(place(number), secrets)) as store:
            if rewritten:
                run.finish()
                rewrite(run)
            die(run.base, lethal)
            check(store)
            rewrite(run)
            run.finish()
            check_end(store, run)
            if isinstance(store, S3Store):
                assert not list(_uploads(store._client, f"{number}/"))


def test_an_uploader_to_a_directory_killed_at_every_point(tmp_path: Path) -> None:
    """Before its every effect, the first time and while a complete checkpoint is replaced."""
    _try_all(tmp_path, lambda n: {"url": f"file://{tmp_path}/store-{n}"}, {}, most=12)
    assert not list(tmp_path.glob("store-*/.uploads"))


def test_an_uploader_to_a_bucket_killed_at_every_point(tmp_path: Path, bucket: Bucket) -> None:
    """Before its every request and file."""
    _try_all(tmp_path, lambda n: bucket.place(prefix=str(n)), bucket.secrets, most=6)


def test_checkpoints_that_stay_where_they_are(tmp_path: Path) -> None:
    """Without a store the manifests lie beside them; killed at every point, a manifest never precedes its files."""
    counted = saved(tmp_path / "count", {"url": None}, {})
    for lethal in _points(die(counted.base, 0), 8):
        run = saved(tmp_path / str(lethal), {"url": None}, {})
        die(run.base, lethal)
        store = DirectoryStore(run.data / "checkpoints")
        check(store)
        run.finish()
        assert restored(store) == FIRST
