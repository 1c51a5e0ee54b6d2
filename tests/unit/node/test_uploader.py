"""What the uploader takes for finished, complete and worth keeping."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.saved_runs import PREFIX, ManualClock, SavedRun, restored
from trainctl.base.checkpoints.directory_store import DirectoryCheckpointStore
from trainctl.base.checkpoints.manifests import RunCheckpoints
from trainctl.base.failure import Failure
from trainctl.node.checkpoints import monitor
from trainctl.node.checkpoints.monitor import SavedCheckpoint, SavedFile
from trainctl.node.checkpoints.uploader_process import ended_orderly
from trainctl.node.runs.record import upload_status


def test_a_file_is_finished_after_five_quiet_seconds_and_a_checkpoint_after_sixty(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """It is uploaded when it is finished and listed when nothing more came."""
    uploader = run.uploader()
    run.save("checkpoint-1", {"model.bin": b"1"})
    seen = []
    for seconds in (0, 4, 5, 59, 60):
        clock.now = 1000.0 + seconds
        uploader.run_round()
        seen.append((len(list(store.list(f"{PREFIX}/rank-0/"))), list(restored(store))))

    assert seen == [(0, []), (0, []), (1, []), (1, []), (1, ["checkpoint-1"])]


def test_a_newer_checkpoint_makes_one_complete(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """Loose files beside it, such as a log, don't; nor does an old time of the file itself."""
    uploader = run.uploader()
    run.save("checkpoint-1", {"model.bin": b"1"})
    os.utime(run.directory / "rank-0/checkpoint-1/model.bin", (1, 1))
    uploader.run_round()
    clock.now += 10
    run.save(".", {"train.log": b"x"})
    uploader.run_round()
    before = list(restored(store))
    clock.now += 1
    run.save("checkpoint-2", {"model.bin": b"2"})
    uploader.run_round()

    assert (before, list(restored(store))) == ([], ["checkpoint-1"])


def test_what_is_open_for_writing_is_not_finished(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """However long nothing was written; open for reading is no matter."""
    uploader = run.uploader()
    run.save("checkpoint-1", {"a": b"1", "b": b"2"})
    with (
        (run.directory / "rank-0/checkpoint-1/a").open("ab"),
        (run.directory / "rank-0/checkpoint-1/b").open("rb"),
    ):
        uploader.run_round()
        clock.now += 1000
        uploader.run_round()
        during = [one.key for one in store.list(f"{PREFIX}/")]
    uploader.run_round()

    assert during == [f"{PREFIX}/rank-0/checkpoint-1/b"]
    assert restored(store) == {"checkpoint-1": {"a": b"1", "b": b"2"}}


def test_a_checkpoint_that_changes_becomes_another_version(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one can be had until the new one is whole; what did not change is not uploaded again."""
    run.save("last", {"model.bin": b"old", "config.json": b"{}"})
    run.finish()
    run.save("last", {"model.bin": b"new"})
    uploader = run.uploader()
    during = []
    send = uploader._send

    def spy(one: SavedCheckpoint, file: SavedFile, key: str) -> str:
        during.append((key, restored(store)["last"]["model.bin"]))
        return send(one, file, key)

    monkeypatch.setattr(uploader, "_send", spy)
    end = run.end()
    uploader.run_round(end)
    uploader.finish(end)

    assert during == [(f"{PREFIX}/.versions/rank-0/last/2/model.bin", b"old")]
    assert restored(store) == {"last": {"model.bin": b"new", "config.json": b"{}"}}
    assert [one.key for one in store.list(f"{PREFIX}/rank-0/")] == [
        f"{PREFIX}/rank-0/last/config.json"
    ]


def test_a_file_that_changes_while_it_is_read_is_taken_again(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture is never complete."""
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


def test_what_the_job_removes_stays_kept(run: SavedRun, store: DirectoryCheckpointStore) -> None:
    """A trainer's own rotation frees the disk; what was complete can still be had, what was not is nothing."""
    uploader = run.uploader(debounce_seconds=0.0)
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.save("half", {"model.bin": b"half"})
    uploader._monitor._idle_seconds = 0.0
    uploader.run_round()
    uploader._monitor._idle_seconds = 60.0
    run.save("tmp-checkpoint-2", {"model.bin": b"2"})
    uploader.run_round()
    for name in ("checkpoint-1", "tmp-checkpoint-2"):
        (run.directory / "rank-0" / name / "model.bin").unlink()
        (run.directory / "rank-0" / name).rmdir()
    end = run.end()
    uploader.run_round(end)
    uploader.finish(end)

    assert restored(store) == {"checkpoint-1": {"model.bin": b"1"}, "half": {"model.bin": b"half"}}
    assert not [one for one in store.list(PREFIX) if "tmp-" in one.key]


def test_what_the_job_removes_file_by_file_stays_kept(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """A look may come while a checkpoint is being removed, and a job may be killed then: what is left of it is not another version."""
    files = {"config.json": b"{}", "model.bin": b"1", "optimizer.bin": b"2"}
    run.save("checkpoint-1", files)
    run.finish()
    for name in ("model.bin", "optimizer.bin"):
        (run.directory / "rank-0/checkpoint-1" / name).unlink()
        run.finish()
        assert restored(store) == {"checkpoint-1": files}
    run.save("checkpoint-1", {"config.json": b"[]", "model.bin": b"3"})
    run.finish()

    assert restored(store) == {"checkpoint-1": {"config.json": b"[]", "model.bin": b"3"}}


def test_what_the_job_is_removing_does_not_become_complete(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """Its upload was not done when the job rotated it away: some files of it are no checkpoint, however long they were as they are."""
    uploader = run.uploader()
    run.save("checkpoint-1", {"config.json": b"{}", "model.bin": b"1", "rng.pth": b"2"})
    uploader.run_round()
    clock.now += 1
    run.save("checkpoint-2", {"model.bin": b"2"})
    uploader.run_round()
    seen: list[list[str]] = []
    for seconds in (3, 9):
        clock.now += seconds
        (run.directory / "rank-0/checkpoint-1" / ("model.bin", "config.json")[len(seen)]).unlink()
        uploader.run_round()
        seen.append(list(restored(store)))

    assert seen == [[], []]


def test_links_and_hidden_directories_are_no_checkpoints(
    run: SavedRun, store: DirectoryCheckpointStore, tmp_path: Path
) -> None:
    """Nothing of the host gets out through a link."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("s3cret")
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.save(".checkpoint-2", {"model.bin": b"2"})
    (run.directory / "rank-0" / "latest").symlink_to(tmp_path / "host")
    (run.directory / "rank-0" / "checkpoint-1" / "link").symlink_to(tmp_path / "host" / "secret")
    (run.directory / "rank-1").symlink_to(tmp_path / "host")
    run.finish()

    assert restored(store) == {"checkpoint-1": {"model.bin": b"1"}}


@pytest.mark.parametrize("name", ["a b", "-rf", "ü", "new\nline", "%2e%2e", "x.json", "<b>"])
def test_odd_names_are_kept(run: SavedRun, store: DirectoryCheckpointStore, name: str) -> None:
    """Of checkpoints and of files in them."""
    run.save(name, {name: b"1"})
    run.finish()
    assert restored(store) == {name: {name: b"1"}}


def test_a_name_that_cannot_be_kept_stops_nothing_else(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """The others are complete, and the sync says which one is not."""
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.save("x" * 252, {"model.bin": b"1"})
    run.finish()

    assert list(restored(store)) == ["checkpoint-1"]
    assert "is too long" in (upload_status(run.run.directory)["error"] or "")


def test_a_killed_jobs_last_checkpoint_is_not_taken_for_complete(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """One before it is. An orderly end completes both."""
    run.save("checkpoint-1", {"model.bin": b"1"})
    uploader = run.uploader()
    uploader.run_round()
    clock.now += 30
    run.save("checkpoint-2", {"model.bin": b"2"})
    uploader.run_round()
    clock.now += 6
    killed = monitor.RunEnd(False, clock.time(), {})
    done = uploader.run_round(killed)
    uploader.finish(killed)
    after_kill = list(restored(store))

    run.finish()

    assert done
    assert after_kill == ["checkpoint-1"]
    assert sorted(restored(store)) == ["checkpoint-1", "checkpoint-2"]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("STOPPED", None, True),
        ("STOPPED", -signal.SIGTERM, True),
        ("STOPPED", 5, True),
        ("STOPPED", -signal.SIGKILL, False),
        ("STOPPED", 128 + signal.SIGKILL, False),
        ("FAILED", 1, True),
        ("FAILED", 128 + signal.SIGTERM, True),
        ("FAILED", -signal.SIGKILL, False),
        ("FAILED", None, False),
    ],
)
def test_a_job_that_had_to_be_killed_did_not_end_in_order(
    status: str, code: int | None, expected: bool
) -> None:
    """Also one that was stopped, and took longer than its grace."""
    assert ended_orderly({"status": f"TRAINING_JOB_{status}", "exit_code": code}) == expected


def test_retention_keeps_the_newest_and_every_nth(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone is not uploaded again by the next uploader; what is being read stays."""
    for step in range(1, 8):
        run.save(f"checkpoint-{step}", {"model.bin": str(step).encode()})
        os.utime(run.directory / f"rank-0/checkpoint-{step}/model.bin", (step, step))
    RunCheckpoints(store, PREFIX).lease(0, "checkpoint-2")
    run.finish()
    run.finish(keep_last=2, keep_every=3)
    first = sorted(restored(store))
    sent: list[str] = []
    uploader = run.uploader(keep_last=2, keep_every=3)
    monkeypatch.setattr(uploader, "_send", lambda one, file, key: sent.append(key))
    uploader.run_round(run.end())

    assert first == ["checkpoint-2", "checkpoint-3", "checkpoint-6", "checkpoint-7"]
    assert sent == []
    assert (run.directory / "rank-0/checkpoint-1/model.bin").exists()


def test_what_a_trainer_renames_leaves_nothing_under_its_first_name(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock
) -> None:
    """It never was complete there. One that was, and that the job removes, stays."""
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.finish()
    (run.directory / "rank-0/checkpoint-1/model.bin").unlink()
    run.save("tmp-checkpoint-2", {"model.bin": b"2", "state.bin": b"s"})
    uploader, before = run.uploader(), set(names(store))
    uploader.run_round()
    clock.now += 6
    uploader.run_round()
    staged = set(names(store)) - before
    (run.directory / "rank-0/tmp-checkpoint-2").rename(run.directory / "rank-0/checkpoint-2")
    seen = []
    uploader = run.uploader()
    for seconds in (0, 61):
        clock.now += seconds
        uploader.run_round()
        seen.append(staged & set(names(store)))

    assert staged == {"tmp-checkpoint-2/model.bin", "tmp-checkpoint-2/state.bin"}
    assert seen == [set(), set()]
    assert sorted(restored(store)) == ["checkpoint-1", "checkpoint-2"]


def names(store: DirectoryCheckpointStore) -> list[str]:
    """What the store has of the first rank."""
    top = f"{PREFIX}/rank-0/"
    return [one.key[len(top) :] for one in store.list(top)]


def test_without_a_store_retention_waits_for_the_end(tmp_path: Path) -> None:
    """A trainer may still want the checkpoint it called its best."""
    run = SavedRun(tmp_path, {"url": None, "keep_last": 1})
    for step in (1, 2):
        run.save(f"checkpoint-{step}", {"model.bin": b"x"})
        os.utime(run.directory / f"rank-0/checkpoint-{step}/model.bin", (step, step))
    run.uploader().run_round()
    before = sorted(path.name for path in (run.directory / "rank-0").iterdir())
    run.finish()

    assert before == ["checkpoint-1", "checkpoint-2"]
    assert [path.name for path in (run.directory / "rank-0").iterdir()] == ["checkpoint-2"]


def test_a_manifest_that_leads_elsewhere_is_not_believed(
    run: SavedRun, store: DirectoryCheckpointStore
) -> None:
    """Neither its paths nor its keys; then the checkpoint isn't complete."""
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


def test_a_full_disk_of_the_store_is_said_and_waited_for(
    run: SavedRun, store: DirectoryCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is full; the next round goes on."""
    run.save("checkpoint-1", {"model.bin": b"1"})
    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    uploader, end = run.uploader(), run.end()
    with pytest.raises(OSError, match="No space"):
        uploader.run_round(end)
    monkeypatch.setattr(os, "fsync", real)

    assert restored(store) == {}
    assert uploader.run_round(end)
    assert restored(store) == {"checkpoint-1": {"model.bin": b"1"}}


def test_a_refused_store_is_known_before_anything_runs(tmp_path: Path) -> None:
    """``announce`` writes run.json, and fails where nothing can be kept."""
    (tmp_path / "file").write_text("")
    run = SavedRun(tmp_path / "node", {"url": f"file://{tmp_path}/file/store"})
    with pytest.raises((Failure, OSError)):
        run.uploader().announce()
