"""Links in checkpoints: kept as files if they lead to files of the job's checkpoints, otherwise counted."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.saved_runs import PREFIX, ManualClock, SavedRun, restored
from trainctl.base.checkpoints.directory_store import DirectoryCheckpointStore
from trainctl.base.checkpoints.manifests import RunCheckpoints
from trainctl.node.checkpoints.methods import checkpoint_listing
from trainctl.node.checkpoints.monitor import list_saved

WEIGHTS = bytes(range(256)) * 1000


def link(run: SavedRun, path: str, target: str | Path) -> Path:
    """A link in the job's checkpoint directory."""
    made = run.directory / "rank-0" / path
    made.parent.mkdir(parents=True, exist_ok=True)
    made.symlink_to(target)
    return made


def skipped_links(store: DirectoryCheckpointStore) -> dict[str, int]:
    return {one["name"]: one["skipped_links"] for one in RunCheckpoints(store, PREFIX).manifests()}


def in_place(tmp_path: Path, **settings: int) -> tuple[SavedRun, DirectoryCheckpointStore]:
    """A run without a store, and where its checkpoints then are."""
    run = SavedRun(tmp_path / "node", {"url": None, **settings})
    return run, DirectoryCheckpointStore(run.data / "checkpoints")


@pytest.mark.parametrize("kept_in_place", [False, True])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_to_a_file_of_another_checkpoint_is_kept_as_that_file(
    run: SavedRun,
    store: DirectoryCheckpointStore,
    tmp_path: Path,
    kept_in_place: bool,
    absolute: bool,
) -> None:
    """Through links to links, too; also if checkpoints stay where they were saved."""
    if kept_in_place:
        run, store = in_place(tmp_path)
    run.save("full", {"model.safetensors": struct.pack("<Q", 2) + b"{}" + WEIGHTS})
    run.save("link", {"small": b"1"})
    full = run.directory / "rank-0" / "full" / "model.safetensors"
    link(run, "link/model.safetensors", full if absolute else "../full/model.safetensors")
    link(run, "link/again", "model.safetensors")
    run.finish()

    content = full.read_bytes()
    assert restored(store)["link"] == {
        "small": b"1",
        "model.safetensors": content,
        "again": content,
    }
    assert skipped_links(store) == {"full": 0, "link": 0}
    if kept_in_place:
        events: list[Any] = []
        place: Any = {"data": str(run.data), "place": None, "prefix": PREFIX}
        checkpoint_listing(place | {"rank": 0, "name": "link"}, events.append)
        assert events[0]["total"] == 2 * len(content) + 1


def test_links_to_anything_else_are_counted_and_not_kept(
    run: SavedRun, store: DirectoryCheckpointStore, tmp_path: Path
) -> None:
    """Files outside, missing files, directories, pipes and devices. A hidden directory is no checkpoint, and a link no rank."""
    (tmp_path / "secret").write_text("s3cret")
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.save(".checkpoint-2", {"model.bin": b"2"})
    (run.directory / "rank-1").symlink_to(tmp_path)
    os.mkfifo(run.directory / "rank-0" / "pipe")
    (run.directory / "rank-0" / "up").symlink_to(tmp_path)
    secret = tmp_path / "secret"
    relative = os.path.relpath(secret, run.directory / "rank-0" / "checkpoint-1")
    targets = f"{secret} {relative} ../up/secret nothing itself ../pipe .. /dev/zero".split()
    for number, target in enumerate(targets):
        link(run, "checkpoint-1/itself" if target == "itself" else f"checkpoint-1/{number}", target)
    run.finish()

    assert restored(store) == {"checkpoint-1": {"model.bin": b"1"}}
    assert skipped_links(store)["checkpoint-1"] == len(targets)


def test_a_target_that_the_job_removes_takes_nothing_from_what_is_kept(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.save("best", {"small": b"s"})
    link(run, "best/model.bin", "../checkpoint-1/model.bin")
    uploader = run.uploader()
    uploader.run_round()
    clock.now += 61
    uploader.run_round()
    (run.directory / "rank-0/checkpoint-1/model.bin").unlink()
    uploader.run_round()
    clock.now += 61
    uploader.run_round(run.end())
    uploader.finish(run.end())

    assert restored(store)["best"] == {"small": b"s", "model.bin": b"1"}
    assert skipped_links(store)["best"] == 0


def test_in_place_retention_keeps_targets_of_links(tmp_path: Path) -> None:
    run, store = in_place(tmp_path, keep_last=1)
    for step in (1, 2, 3):
        run.save(f"checkpoint-{step}", {"model.bin": str(step).encode()})
        os.utime(run.directory / f"rank-0/checkpoint-{step}/model.bin", (step, step))
    run.save("best", {"small": b"s"})
    link(run, "best/model.bin", "../checkpoint-1/model.bin")
    run.finish()

    assert sorted(restored(store)) == ["best", "checkpoint-1", "checkpoint-3"]
    assert [one.name for one in list_saved(run.directory)] == [
        "best",
        "checkpoint-1",
        "checkpoint-3",
    ]
