"""Runs with checkpoints, without the job: what an uploader finds, and what a store then holds.

    python -m tests.support.node_program.saved_runs N COUNTFILE BASE

ends the uploading of the run below BASE before its N-th effect, as ``tests.support.projects.kill_at_effect`` does with commands.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import run_spec
from tests.support.projects.kill_at_effect import kill_at_effect
from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints
from trainctl.base.checkpoints.stores import CheckpointStore, DirectoryCheckpointStore
from trainctl.node.checkpoints import monitor
from trainctl.node.checkpoints import uploader as uploader_module
from trainctl.node.checkpoints.loader import load_checkpoints
from trainctl.node.checkpoints.monitor import RunEnd
from trainctl.node.checkpoints.uploader import Uploader
from trainctl.node.checkpoints.uploader_process import run_uploader
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

PREFIX = "demo/sft/1-abcdefg"


class SavedRun:
    """One run under a directory: ``save`` plays the job; ``uploader`` is a new one each time, as after a crash."""

    def __init__(
        self, base: Path, place: Mapping[str, Any], secrets: Mapping[str, str] = {}
    ) -> None:
        self.base = base
        self.data = base / "data"
        self.directory = self.data / "checkpoints" / PREFIX
        self.secrets = dict(secrets)
        self.run = NodeRun(Layout(str(base / "root")), "run-1")
        store = {"prefix": PREFIX, "debounce_seconds": 0.0, "idle_seconds": 0.0}
        keeping = {"checkpointing_config": {"enabled": True}}
        self.spec: dict[str, Any] = {**run_spec(project="demo", store=store, **keeping)}
        self.spec = self.changed({"upload_timeout": 60, **place})
        self.run.directory.mkdir(parents=True, exist_ok=True)

    def save(self, name: str, files: Mapping[str, bytes], rank: int = 0) -> None:
        for path, data in files.items():
            file = self.directory / f"rank-{rank}" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The specification with other settings of checkpoints or of their store."""
        kept = {key: changes.get(key, value) for key, value in self.spec["checkpoints"].items()}
        store = {key: value for key, value in changes.items() if key not in kept}
        return {**self.spec, "checkpoints": kept, "store": {**self.spec["store"], **store}}

    def uploader(self, **changes: Any) -> Uploader:
        """One that begins anew, with what is on disk."""
        spec: Any = self.changed(changes)
        return Uploader(self.run, spec, self.secrets, self.data)

    def end(self) -> RunEnd:
        return RunEnd(True, time.time(), {"status": "TRAINING_JOB_COMPLETED"})

    def load(
        self,
        name: str | None = None,
        job: str | None = "sft",
        runs: Sequence[str] = (),
        *,
        force: bool = False,
    ) -> tuple[Path, list[dict[str, Any]]]:
        """Where the project's next run finds the checkpoints that it loads, and their rows."""
        reference = {
            "project": "demo", "job": job, "run": None, "name": name, "optional": False, "force": force, "runs": [*runs]
        }  # fmt: skip
        following = NodeRun(self.run.layout, "run-9")
        spec: Any = {**self.spec, "load": [reference]}
        return following.loaded, load_checkpoints(following, spec, self.secrets, self.data)

    def finish(self, **changes: Any) -> None:
        """Upload everything of the ended run."""
        uploader, end = self.uploader(**changes), self.end()
        assert uploader.run_round(end)
        uploader.finish(end)


class ManualClock:
    """The uploader's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_790_000_000.0 + self.now


@pytest.fixture(name="run")
def saved_run(tmp_path: Path) -> SavedRun:
    """A run that is kept in a directory; files count as finished after five seconds of the uploader's clock."""
    place = {"url": f"file://{tmp_path}/store", "debounce_seconds": 5.0, "idle_seconds": 60.0}
    return SavedRun(tmp_path / "node", place)


@pytest.fixture(name="store")
def its_store(tmp_path: Path) -> DirectoryCheckpointStore:
    return DirectoryCheckpointStore(tmp_path / "store")


@pytest.fixture(name="clock")
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(uploader_module, "time", clock)
    monkeypatch.setattr(monitor, "time", clock)
    return clock


def restored(store: CheckpointStore, prefix: str = PREFIX) -> dict[str, dict[str, bytes]]:
    """Every complete checkpoint of a run by name, each file as it comes back; AssertionError if one isn't what was kept."""
    return {row["name"]: _files(store, row) for row in RunCheckpoints(store, prefix).manifests()}


def _files(store: CheckpointStore, manifest: CheckpointManifest) -> dict[str, bytes]:
    result = {}
    for file in manifest["files"]:
        data = bytearray()
        store.read(file["key"], 0, data.extend)
        assert hashlib.sha256(data).hexdigest() == file["sha256"], file["key"]
        result[file["path"]] = bytes(data)
    return result


if __name__ == "__main__":
    described = json.loads((Path(sys.argv[3]) / "run.json").read_text())
    saved = SavedRun(Path(sys.argv[3]), described["place"], described["secrets"])
    uploader = saved.uploader()
    end = saved.end()
    sys.dont_write_bytecode = True
    kill_at_effect(int(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(run_uploader(uploader, lambda _: end))
