"""The uploader killed at every point: what is listed as complete is whole, and the next one carries on.

The short form takes points spread evenly over an upload; the long form takes every one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.saved_runs import PREFIX, SavedRun, restored
from tests.support.node_program.verb_forks import VerbForkServer
from tests.support.servers.buckets import BucketServer, moto
from tests.support.tiers import points
from trainctl.base.checkpoints.manifests import COMPLETE
from trainctl.base.checkpoints.s3 import S3CheckpointStore, _uploads
from trainctl.base.checkpoints.stores import (
    CheckpointStore,
    DirectoryCheckpointStore,
    open_checkpoint_store,
)
from trainctl.base.filesystem.files import is_temporary, write_json

Place = Callable[[int], dict[str, Any]]
"""The store of a test's n-th run."""

EVERY = 0


def how_many(short: int) -> pytest.MarkDecorator:
    """So many points in the short form, all in the long one."""
    long = pytest.param(EVERY, id="long", marks=pytest.mark.long)
    return pytest.mark.parametrize("most", [pytest.param(short, id="short"), long])


FIRST = {
    "checkpoint-1": {"model.bin": b"one" * 1000, "deep/state.json": b"{}"},
    "checkpoint-2": {"model.bin": b"two" * 1000, "empty": b""},
}
SECOND = {"checkpoint-2": {"model.bin": b"TWO" * 1000, "empty": b"", "new": b"n"}}


@pytest.fixture(scope="module")
def bucket() -> Iterator[BucketServer]:
    with moto() as server:
        yield server


def die(base: Path, lethal: int) -> int:
    """Upload, and die before that effect; the number of effects if 0."""
    count = base / "count"
    program = (sys.executable, "-m", "tests.support.node_program.saved_runs")
    words = [*program, str(lethal), str(count), str(base)]
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


def mixed(store: CheckpointStore) -> list[str]:
    """Complete checkpoints that are neither of their versions: there must never be one."""
    return [
        name
        for name, files in restored(store).items()
        if files not in (FIRST[name], SECOND.get(name))
    ]


def check_end(store: CheckpointStore, run: SavedRun) -> None:
    """All of it is there, in its last version, and nothing else."""
    assert restored(store) == {**FIRST, **SECOND}
    named = {
        file["key"]
        for item in store.list(f"{PREFIX}/{COMPLETE}/")
        for file in json.loads(store.get(item.key) or b"")["files"]
    }
    objects = {item.key for item in store.list("") if COMPLETE not in item.key}
    assert objects == {*named, f"{PREFIX}/run.json"}
    assert json.loads((run.run.directory / "sync.json").read_text())["state"] == "COMPLETED"


def killed_at_each(
    tmp_path: Path, place: Place, secrets: dict[str, str], most: int
) -> Iterator[tuple[int, SavedRun, CheckpointStore]]:
    """Kill the first upload, then the one of the rewritten checkpoint, at each point in turn; the number, run and store after the kill."""
    counted = saved(tmp_path / "count", place(0), secrets)
    first = die(counted.base, 0)
    rewrite(counted)
    second = die(counted.base, 0)
    assert first > 8
    assert second > 4
    cases = [
        *((False, n) for n in points(first, most)),
        *((True, n) for n in points(second, most)),
    ]
    for number, (rewritten, lethal) in enumerate(cases, 1):
        run = saved(tmp_path / str(number), place(number), secrets)
        with closing(open_checkpoint_store(place(number), secrets)) as store:
            if rewritten:
                run.finish()
                rewrite(run)
            die(run.base, lethal)
            yield number, run, store


@how_many(short=3)
def test_an_uploader_to_a_directory_killed_at_every_point(tmp_path: Path, most: int) -> None:
    """Before its every effect, the first time and while a complete checkpoint is replaced."""

    def place(number: int) -> dict[str, Any]:
        return {"url": f"file://{tmp_path}/store-{number}"}

    for number, run, store in killed_at_each(tmp_path, place, {}, most):
        assert mixed(store) == [], number
        rewrite(run)
        run.finish()
        check_end(store, run)
    assert not [path for path in tmp_path.glob("store-*/**/*") if is_temporary(path.name)]


@how_many(short=2)
def test_an_uploader_to_a_bucket_killed_at_every_point(
    tmp_path: Path, bucket: BucketServer, most: int
) -> None:
    """Before its every request and file; no upload in parts is left open."""

    def place(number: int) -> dict[str, Any]:
        return bucket.place(prefix=str(number))

    for number, run, store in killed_at_each(tmp_path, place, bucket.secrets, most):
        assert mixed(store) == [], number
        rewrite(run)
        run.finish()
        check_end(store, run)
        assert isinstance(store, S3CheckpointStore)
        assert not list(_uploads(store._client, f"{number}/"))


@how_many(short=2)
def test_checkpoints_that_stay_where_they_are(tmp_path: Path, most: int) -> None:
    """Without a store the manifests lie beside them; killed at every point, a manifest never precedes its files."""
    counted = saved(tmp_path / "count", {"url": None}, {})
    for lethal in points(die(counted.base, 0), most):
        run = saved(tmp_path / str(lethal), {"url": None}, {})
        die(run.base, lethal)
        store = DirectoryCheckpointStore(run.data / "checkpoints")
        assert mixed(store) == [], lethal
        run.finish()
        assert restored(store) == FIRST


@pytest.mark.parametrize(
    "step", [pytest.param(4, id="short"), pytest.param(1, id="long", marks=pytest.mark.long)]
)
def test_what_brings_a_run_afterwards_killed_at_every_point(tmp_path: Path, step: int) -> None:
    """The verb behind ``checkpoints upload``, killed before its every effect: the next call takes its lock over and ends it."""
    zygote = VerbForkServer()
    lethal, killed = 0, True
    while killed:
        lethal += step
        place = {"url": f"file://{tmp_path}/store-{lethal}"}
        run = saved(tmp_path / str(lethal), place, {})
        write_json(run.run.directory / "spec.json", run.spec)
        run.run.write({"status": "TRAINING_JOB_COMPLETED", "exit_code": 0, "ended_at": time.time()})
        request = {
            "root": str(run.base / "root"),
            "data": str(run.data),
            "key": "run-1",
            "secrets": {},
        }
        zygote.send("upload_checkpoints", request, die=lethal)
        killed = "killed" in zygote.answer()
        store = open_checkpoint_store(place, {})
        assert mixed(store) == [], lethal
        zygote.send("upload_checkpoints", request)
        assert zygote.answer()["result"]["sync"]["state"] == "COMPLETED", lethal
        assert restored(store) == FIRST, lethal
    zygote.close()
    assert lethal > 8
