"""Which files and checkpoints the uploader takes for finished, complete, the newest and worth keeping."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.saved_runs import PREFIX, ManualClock, SavedRun, restored
from trainctl.base.checkpoints.manifests import RunCheckpoints
from trainctl.base.checkpoints.stores import DirectoryCheckpointStore
from trainctl.base.points import RunPoints, update_points
from trainctl.errors import TrainctlError
from trainctl.node.checkpoints import monitor
from trainctl.node.checkpoints.methods import checkpoint_listing
from trainctl.node.checkpoints.monitor import SavedCheckpoint, SavedFile, list_saved
from trainctl.node.checkpoints.uploader_process import ended_orderly
from trainctl.node.runs.record import upload_status


def loaded(
    run: SavedRun, name: str | None = None, job: str | None = "sft", runs: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """What the project's next run loads: run and checkpoint."""
    return [(load["run"], load["name"]) for load in run.load(name, job, runs)[1]]


def of_another_run(
    store: DirectoryCheckpointStore, name: str, at: float, prefix: str, step: int | None = None
) -> None:
    """A complete checkpoint of another run, by its manifest alone."""
    manifest: dict[str, Any] = {
        "format": 1, "version": 1, "rank": 0, "name": name, "step": step, "created_at": at, "files": [],
    }  # fmt: skip
    RunCheckpoints(store, prefix).put(manifest)


def _save(run: SavedRun, files: Mapping[str, Mapping[str, str]], at: float | None) -> None:
    for name, content in files.items():
        run.save(name, {path: text.encode() for path, text in content.items()})
        for path in content if at else ():
            os.utime(run.directory / "rank-0" / name / path, (at or 0, at or 0))


def _stored(store: DirectoryCheckpointStore, expected: Any) -> Any:
    """The complete checkpoints, or their content, as ``expected`` has them."""
    if isinstance(expected, list):
        return sorted(restored(store))
    return {
        name: {path: data.decode() for path, data in files.items()}
        for name, files in restored(store).items()
    }


def unreadable(top: str, onerror: Callable[[OSError], None] = lambda _: None) -> Iterator[Any]:
    """``os.walk`` on a disk that fails."""
    onerror(OSError("disk failed"))
    return iter(())


@pytest.mark.parametrize("case", cases("node/uploads"))
def test_finished_files_and_complete_checkpoints_are_stored(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock, case: Any
) -> None:
    top, settings = f"{PREFIX}/rank-0/", case[0].get("settings", {})
    place, uploader = run.directory / "rank-0", run.uploader(**settings)
    for step in case:
        clock.now += step.get("after", 0)
        _save(run, step.get("save", {}), step.get("at"))
        for path in step.get("remove", ()):
            (place / path).unlink()
        if "rename" in step:
            (place / step["rename"][0]).rename(place / step["rename"][1])
        if step.get("restarted"):
            uploader = run.uploader(**settings)
        if step.get("end") == "orderly":
            run.finish(**step.get("settings", {}))
        elif step.get("end") == "killed":
            end = monitor.RunEnd(False, clock.time(), {})
            assert uploader.run_round(end)
            uploader.finish(end)
        elif "fails" in step:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "walk", unreadable)
                uploader.report_failure(step["fails"])
                with pytest.raises(OSError, match=step["fails"]):
                    uploader.run_round()
        else:
            uploader.run_round()

        files = [stat.key.removeprefix(top) for stat in store.list(top)]
        assert files == step.get("stored", files), step
        if "complete" in step:
            assert _stored(store, step["complete"]) == step["complete"], step
        assert "loaded" not in step or loaded(run) == [(PREFIX, step["loaded"])]
        for name in step.get("loaded by name", ()):
            assert loaded(run, name) == [(PREFIX, name)]


def test_points_are_stored_with_each_checkpoint_and_at_the_end(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    def stored() -> list[float]:
        found: RunPoints = {}
        update_points(found, json.loads(store.get(f"{PREFIX}/points-0.json") or b""))
        return [*found["loss"].columns()[0]]

    run.run.progress.mkdir()
    run.run.progress_lines.write_text('{"loss": 3}\n')
    uploader = run.uploader()
    run.save("checkpoint-1", {"a": b"1"})
    uploader.run_round()
    assert store.get(f"{PREFIX}/points-0.json") is None
    clock.now += 100
    uploader.run_round()
    assert stored() == [3]
    run.run.progress_lines.write_text('{"loss": 3}\n{"loss": 2}\n')
    run.finish()
    assert stored() == [3, 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_best_is_the_first_of_equal_ones(
    run: SavedRun, store: DirectoryCheckpointStore, rank: int
) -> None:
    """And none that the trainer did not finish. Other ranks keep all: each would have another best one."""
    run.run.progress.mkdir()
    rows = ({"step": step, "loss": loss} for step, loss in ((900, 1), (950, 2), (1100, 4)))
    run.run.progress_lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.save("checkpoint-900", {"checkpoint-is-incomplete.txt": b""}, rank)
    for step in (900, 950, 1000, 1100):
        run.save(f"checkpoint-{step}", {"model.bin": b"1"}, rank)
    run.spec["rank"] = rank
    run.spec["checkpoints"]["keep_best"] = {"metric": "loss", "mode": "min", "count": 1}
    run.finish()

    kept = {row["name"] for row in RunCheckpoints(store, PREFIX).manifests()}
    best = {"checkpoint-950", "checkpoint-1100"}
    assert kept == best | ({"checkpoint-1000"} if rank else set())


def test_an_unfinished_checkpoint_is_loaded_by_force_only(run: SavedRun) -> None:
    _save(run, {"checkpoint-1": {"model.bin": "1", "checkpoint-is-incomplete.txt": ""}}, None)
    run.finish()
    with pytest.raises(TrainctlError, match="no complete checkpoint 'checkpoint-1'") as caught:
        loaded(run, "checkpoint-1")
    assert "(unfinished: checkpoint-is-incomplete.txt is left; force" in caught.value.detail
    assert [row["name"] for row in run.load("checkpoint-1", force=True)[1]] == ["checkpoint-1"]


def test_a_file_that_is_open_for_writing_is_not_finished(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    uploader = run.uploader()
    run.save("checkpoint-1", {"a": b"1", "b": b"2"})
    directory = run.directory / "rank-0/checkpoint-1"
    with (directory / "a").open("ab"), (directory / "b").open("rb"):
        uploader.run_round()
        clock.now += 1000
        uploader.run_round()
        during = [stat.key for stat in store.list(f"{PREFIX}/")]
    uploader.run_round()

    assert during == [f"{PREFIX}/rank-0/checkpoint-1/b"]
    assert restored(store) == {"checkpoint-1": {"a": b"1", "b": b"2"}}


def test_a_checkpoint_that_changes_becomes_another_version(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save("last", {"model.bin": b"old", "config.json": b"{}"})
    run.finish()
    run.save("last", {"model.bin": b"new"})
    uploader = run.uploader()
    during = []
    send = uploader._send

    def spy(checkpoint: SavedCheckpoint, file: SavedFile, key: str) -> str:
        during.append((key, restored(store)["last"]["model.bin"]))
        return send(checkpoint, file, key)

    monkeypatch.setattr(uploader, "_send", spy)
    end = run.end()
    uploader.run_round(end)
    uploader.finish(end)

    assert during == [(f"{PREFIX}/.versions/rank-0/last/2/model.bin", b"old")]
    assert restored(store) == {"last": {"model.bin": b"new", "config.json": b"{}"}}
    (stat,) = store.list(f"{PREFIX}/rank-0/")
    assert stat.key == f"{PREFIX}/rank-0/last/config.json"


def test_a_file_that_changes_while_it_is_read_is_taken_again(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save("checkpoint-1", {"model.bin": b"x" * 3_000_000})
    path = run.directory / "rank-0/checkpoint-1/model.bin"
    put = DirectoryCheckpointStore.put_file

    def change(
        self: DirectoryCheckpointStore, key: str, stream: Any, size: int, rate_limiter: Any
    ) -> None:
        put(self, key, stream, size, rate_limiter)
        if path.read_bytes()[:1] == b"x":
            path.write_bytes(b"y" * 3_000_000)

    monkeypatch.setattr(DirectoryCheckpointStore, "put_file", change)
    uploader = run.uploader(debounce_seconds=0.0, idle_seconds=0.0)
    uploader.run_round()
    first = restored(store)
    uploader.run_round()

    assert first == {}
    assert restored(store) == {"checkpoint-1": {"model.bin": b"y" * 3_000_000}}


def test_a_job_that_had_to_be_killed_did_not_end_in_order() -> None:
    """Including one that was stopped and took longer than its grace."""
    killed = (-signal.SIGKILL, 128 + signal.SIGKILL)
    for status, code, expected in (
        *(("STOPPED", code, True) for code in (None, -signal.SIGTERM, 5)),
        *(("STOPPED", code, False) for code in killed),
        *(("FAILED", code, True) for code in (1, 128 + signal.SIGTERM)),
        *(("FAILED", code, False) for code in (-signal.SIGKILL, None)),
    ):
        end = {"status": f"TRAINING_JOB_{status}", "exit_code": code}
        assert ended_orderly(end) is expected, end


def test_retention_keeps_the_newest_and_every_nth(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 8):
        _save(run, {f"checkpoint-{step}": {"model.bin": "x"}}, step)
    RunCheckpoints(store, PREFIX).lease(0, "checkpoint-2")
    run.finish()
    run.finish(keep_last=2, keep_every=3)
    first = sorted(restored(store))
    sent: list[str] = []
    uploader = run.uploader(keep_last=2, keep_every=3)
    monkeypatch.setattr(uploader, "_send", lambda item, file, key: sent.append(key))
    uploader.run_round(run.end())

    assert first == ["checkpoint-2", "checkpoint-3", "checkpoint-6", "checkpoint-7"]
    assert sent == []
    assert (run.directory / "rank-0/checkpoint-1/model.bin").exists()


def test_only_recorded_runs_count_under_any_name(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """Not those of a job of that name in another state; but a reused one of another job."""
    run.save("checkpoint-100", {"model.bin": b"x"})
    run.finish()
    of_another_run(store, "checkpoint-900", 900, "demo/sft/1-other", 900)
    of_another_run(store, "checkpoint-50", 50, "demo/tune/1-reused", 50)

    assert loaded(run, runs=[PREFIX]) == [(PREFIX, "checkpoint-100")]
    assert loaded(run, runs=["demo/tune/1-reused"]) == [("demo/tune/1-reused", "checkpoint-50")]
    assert (run.run.layout.run("run-9") / "loaded/sft/rank-0/checkpoint-50").is_dir()


def test_without_a_store_retention_waits_for_the_end(tmp_path: Path) -> None:
    """A trainer may still want the checkpoint it called its best."""
    run = SavedRun(tmp_path, {"url": None, "keep_last": 1})
    for step in (1, 2):
        _save(run, {f"checkpoint-{step}": {"model.bin": "x"}}, step)
    run.uploader().run_round()
    before = sorted(path.name for path in (run.directory / "rank-0").iterdir())
    run.finish()

    assert before == ["checkpoint-1", "checkpoint-2"]
    assert [path.name for path in (run.directory / "rank-0").iterdir()] == ["checkpoint-2"]


def test_without_a_store_logs_are_added_at_the_end(tmp_path: Path) -> None:
    run, store = in_place(tmp_path)
    run.save("exp", {"last.ckpt": b"1", "train.log": b"1"})
    run.uploader().run_round()
    run.save("exp", {"train.log": b"2"})
    during = restored(store)
    run.finish()

    assert during == {"exp": {"last.ckpt": b"1"}}
    assert restored(store) == {"exp": {"last.ckpt": b"1", "train.log": b"2"}}


def test_a_manifest_that_leads_elsewhere_is_not_believed(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.finish()
    kept = RunCheckpoints(store, PREFIX)
    (good,) = kept.manifests()
    for change in (
        {"path": "../../x"}, {"path": "/etc/x"}, {"key": "other/run/x"}, {"key": f"{PREFIX}/../x"}, {"size": -1},
        {"sha256": "no"},
    ):  # fmt: skip
        kept.put({**good, "files": [{**good["files"][0], **change}]})
        assert kept.manifests() == [], change
    store.put(kept.manifest_key(0, "checkpoint-1"), json.dumps({**good, "name": ".."}).encode())
    assert kept.manifests() == []


def test_a_refused_store_is_known_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = SavedRun(tmp_path / "node", {"url": f"file://{tmp_path}/file/store"})
    with pytest.raises((TrainctlError, OSError)):
        run.uploader().announce()


def test_checkpoints_that_an_unreachable_store_lacks_stay_listed(run: SavedRun) -> None:
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.uploader().report_failure("timed out")
    first = upload_status(run.run.directory)
    run.finish()
    run.save("checkpoint-2", {"model.bin": b"2"})
    run.uploader().report_failure("timed out")

    assert first == {"state": "SYNCING", "error": "timed out", "pending": ["checkpoint-1"]}
    assert upload_status(run.run.directory)["pending"] == ["checkpoint-2"]


WEIGHTS = bytes(range(256)) * 1000


def link(run: SavedRun, path: str, target: str | Path) -> Path:
    """A link in the job's checkpoint directory."""
    directory = run.directory / "rank-0" / path
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.symlink_to(target)
    return directory


def skipped_links(store: DirectoryCheckpointStore) -> dict[str, int]:
    return {row["name"]: row["skipped_links"] for row in RunCheckpoints(store, PREFIX).manifests()}


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
    assert [item.name for item in list_saved(run.directory)] == [
        "best",
        "checkpoint-1",
        "checkpoint-3",
    ]
