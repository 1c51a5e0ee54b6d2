"""Which checkpoint is the newest, and which count, beside directories and files that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.node_program.saved_runs import PREFIX, ManualClock, SavedRun, restored
from trainctl.base.checkpoints.directory_store import DirectoryCheckpointStore
from trainctl.base.checkpoints.manifests import RunCheckpoints
from trainctl.node.checkpoints import monitor
from trainctl.node.checkpoints.loader import load_checkpoints
from trainctl.node.runs.record import NodeRun

EVENTS = {"events.out.tfevents": b"scalars"}
TEXT = {"results.json": b"{}"}


def written(run: SavedRun, name: str, at: int, files: Mapping[str, bytes] | None = None) -> None:
    """Save one, last written to at that time."""
    found = files or {"model.bin": name.encode()}
    run.save(name, found)
    for path in found:
        os.utime(run.directory / "rank-0" / name / path, (at, at))


def loaded(
    run: SavedRun, name: str | None = None, job: str | None = "sft", runs: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """What a next run of the project begins with: run and checkpoint."""
    reference = {
        "project": "demo", "job": job, "run": None, "name": name, "optional": False, "runs": [*runs]
    }  # fmt: skip
    spec: Any = {**run.spec, "load": [reference]}
    found = load_checkpoints(NodeRun(run.run.layout, "run-9"), spec, run.secrets, run.data)
    return [(one["run"], one["name"]) for one in found]


def of_another_run(
    store: DirectoryCheckpointStore, name: str, at: float, prefix: str, step: int | None = None
) -> None:
    """A complete checkpoint of another run of the project, by its manifest alone."""
    manifest: dict[str, Any] = {
        "format": 1, "version": 1, "rank": 0, "name": name, "step": step, "created_at": at, "files": [],
    }  # fmt: skip
    RunCheckpoints(store, prefix).put(manifest)


@pytest.mark.parametrize("name", ["runs", "best", "."])
def test_what_has_no_step_is_neither_counted_nor_the_newest(
    run: SavedRun, store: DirectoryCheckpointStore, name: str
) -> None:
    """Where others have one: it takes no checkpoint's place, is kept beside them, and nobody begins with it."""
    written(run, "checkpoint-100", 100)
    written(run, "checkpoint-200", 200)
    written(run, name, 300, EVENTS)
    run.finish(keep_last=1)

    assert restored(store) == {"checkpoint-200": {"model.bin": b"checkpoint-200"}, name: EVENTS}
    assert loaded(run) == [(PREFIX, "checkpoint-200")]
    assert loaded(run, name) == [(PREFIX, name)]


def test_logs_that_are_written_on_take_no_place_while_a_job_goes_on(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """A quiet minute makes such a directory complete; the checkpoint before it stays, and so do both with the next."""
    uploader = run.uploader(keep_last=1)
    seen = []
    for step in (100, 200):
        run.save(f"checkpoint-{step}", {"model.bin": b"x"})
        run.save("runs", {"events": str(step).encode()})
        uploader.run_round()
        clock.now += 61
        uploader.run_round()
        seen.append(sorted(restored(store)))

    assert seen == [["checkpoint-100", "runs"], ["checkpoint-200", "runs"]]


def test_logs_that_are_written_on_make_no_checkpoint_complete(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """They say nothing of whether more of it comes; of a killed job it isn't taken for complete because of them."""
    uploader = run.uploader()
    run.save("checkpoint-100", {"model-1-of-2.bin": b"x"})
    uploader.run_round()
    clock.now += 10
    run.save("runs", EVENTS)
    uploader.run_round()
    during = sorted(restored(store))
    clock.now += 6
    killed = monitor.RunEnd(False, clock.time(), {})
    uploader.run_round(killed)
    uploader.finish(killed)

    assert (during, sorted(restored(store))) == ([], [])


def test_the_step_in_a_trainers_state_counts_as_one_in_a_name(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """``last`` with a state beside logs without one."""
    written(run, "last", 100, {"trainer_state.json": json.dumps({"global_step": 7}).encode()})
    written(run, "runs", 200, EVENTS)
    run.finish(keep_last=1)

    assert sorted(restored(store)) == ["last", "runs"]
    assert loaded(run) == [(PREFIX, "last")]


def test_where_none_has_a_step_the_last_written_is_the_newest(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """Loose files are that only where there is nothing else; retention deletes none of these."""
    written(run, ".", 400)
    run.finish()
    alone = loaded(run)
    written(run, "best", 100)
    written(run, "final", 200)
    run.finish(keep_last=1)

    assert alone == [(PREFIX, ".")]
    assert sorted(restored(store)) == [".", "best", "final"]
    assert loaded(run) == [(PREFIX, "final")]


def test_a_run_that_saved_only_logs_hides_no_checkpoint_of_its_job(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """It ended before its first checkpoint: the next one goes on from the last there is. Of other jobs the last written counts."""
    written(run, "checkpoint-100", 100)
    run.finish()
    of_another_run(store, "runs", 500.0, "demo/sft/2-bbbbbbb")
    own = loaded(run)
    of_another_run(store, "final", 600.0, "demo/dpo/1-ccccccc")
    of_another_run(store, ".", 700.0, "demo/eval/1-ddddddd")

    assert own == loaded(run) == [(PREFIX, "checkpoint-100")]
    assert loaded(run, job=None) == [("demo/dpo/1-ccccccc", "final")]


@pytest.mark.parametrize("name", ["Nov22_10-11-12", "version_0", "eval-400"])
@pytest.mark.parametrize("files", [EVENTS, TEXT])
def test_a_number_is_no_step_of_what_holds_nothing_to_load(
    run: SavedRun, store: DirectoryCheckpointStore, name: str, files: Mapping[str, bytes]
) -> None:
    """Such directories are never the newest beside checkpoints with a step, and retention doesn't count them."""
    written(run, name, 300, files)
    for step in (100, 200):
        written(run, f"checkpoint-{step}", step)
    run.finish(keep_last=1)

    assert loaded(run) == [(PREFIX, "checkpoint-200")]
    assert sorted(restored(store)) == sorted(["checkpoint-200", name])
    assert loaded(run, name) == [(PREFIX, name)]


def test_logs_with_a_number_make_no_checkpoint_complete(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """Nor does a checkpoint that holds only text so far."""
    uploader = run.uploader()
    run.save("checkpoint-100", {"model-1-of-2.bin": b"x"})
    run.save("checkpoint-200", {"config.json": b"{}"})
    uploader.run_round()
    clock.now += 10
    run.save("version_0", EVENTS)
    uploader.run_round()

    assert "checkpoint-100" not in restored(store)


def test_a_rank_that_saves_only_logs_keeps_none_from_a_checkpoint(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """The newest that all ranks have is that of those which have any with a step."""
    written(run, "checkpoint-100", 100)
    written(run, "checkpoint-200", 200)
    run.finish()
    RunCheckpoints(store, PREFIX).put(
        {"format": 1, "version": 1, "rank": 1, "name": "runs", "created_at": 9.0, "files": []}
    )

    assert loaded(run) == [(PREFIX, "checkpoint-200")]


def test_only_recorded_runs_count_under_any_name(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """Not those of a job of that name in another state; but a reused one of another job."""
    written(run, "checkpoint-100", 100)
    run.finish()
    of_another_run(store, "checkpoint-900", 900, "demo/sft/1-other", 900)
    of_another_run(store, "checkpoint-50", 50, "demo/tune/1-reused", 50)

    assert loaded(run, runs=[PREFIX]) == [(PREFIX, "checkpoint-100")]
    assert loaded(run, runs=["demo/tune/1-reused"]) == [("demo/tune/1-reused", "checkpoint-50")]
    assert (run.run.layout.run("run-9") / "loaded/sft/rank-0/checkpoint-50").is_dir()
