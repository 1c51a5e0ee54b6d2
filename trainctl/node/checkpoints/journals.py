"""Journals of a run's uploads and evaluations, from which the next process resumes."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from trainctl.base.filesystem.files import PRIVATE_FILE, modified_at, read_json, write_json
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.runs import EvaluationRow
from trainctl.node.runs.points import points_of
from trainctl.node.runs.record import ENDED, NodeRun

SYNCING = "SYNCING"
COMPLETED = "COMPLETED"

FileKey = Tuple[int, str, str]
"""Rank, checkpoint and path of a file."""


class UploadRecord(NamedTuple):
    """A file in the store, with size and modification time of its source."""

    size: int
    modified: int
    sha256: str
    key: str


class UploadJournal:
    """``uploads.jsonl`` and ``sync.json`` of a run; ignores incomplete lines."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "uploads.jsonl"
        self._sync = directory / "sync.json"
        self._reported: Optional[Dict[str, Any]] = None
        self.files: Dict[FileKey, UploadRecord] = {}

    def load(self) -> None:
        """Read the records of an earlier uploader."""
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                rank, name, path, size, modified, sha256, key = json.loads(line)
            except (ValueError, TypeError):
                continue
            self.files[rank, name, path] = UploadRecord(size, modified, sha256, key)

    def add(self, key: FileKey, uploaded: UploadRecord) -> None:
        """Record a file that was uploaded; ``heartbeat`` has created the journal."""
        self.files[key] = uploaded
        with self._path.open("ab") as stream:  # written at once when it is closed
            stream.write(b"\n" + json.dumps([*key, *uploaded]).encode())

    def heartbeat(self) -> None:
        """Record that an uploader is running."""
        self._path.touch(0o600)

    @property
    def last_heartbeat(self) -> float:
        """Time of the last heartbeat in Unix seconds; 0 if there was none."""
        return modified_at(self._path)

    def report(self, state: str, error: Optional[str], pending: List[str]) -> None:
        """Write the state of the upload to ``sync.json`` if it changed."""
        status = {"state": state, "error": error, "pending": pending[:100]}
        if status != self._reported:
            write_json(self._sync, status)
            self._reported = status


class EvaluationJournal:
    """``evaluations.jsonl``: what became of each checkpoint. A line is durable before its evaluation starts."""

    def __init__(self, run: NodeRun) -> None:
        self._path = run.directory / "evaluations.jsonl"
        self.rows: Dict[Tuple[str, str], EvaluationRow] = {}
        lines: List[bytes] = []
        with contextlib.suppress(FileNotFoundError):
            lines = self._path.read_bytes().split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # cut off when the host failed
                row: EvaluationRow = json.loads(line)
                self.rows[row["run"], row["name"]] = row

    def write(self, row: EvaluationRow) -> bool:
        """Append the state of an evaluation; True when it is durable."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(self._path, flags, PRIVATE_FILE), "wb") as stream:
            stream.write(b"\n" + json.dumps(row).encode())
            stream.flush()
            os.fsync(stream.fileno())
        self.rows[row["run"], row["name"]] = row
        return True


_FOLLOWERS = "followers.json"


def add_follower(followed: NodeRun, run: NodeRun) -> None:
    """Record that a run evaluates the checkpoints of another one."""
    if run.key not in _followers(followed) and followed.directory.exists():
        write_json(followed.directory / _FOLLOWERS, {"runs": [*_followers(followed), run.key]})


def is_awaited(run: NodeRun, prefix: str, name: str) -> bool:
    """Whether a live run is still to evaluate a checkpoint of this one."""
    followers = [NodeRun(run.layout, key) for key in _followers(run)]
    live = [each for each in followers if each.spec and each.record.get("status") not in ENDED]
    rows = [EvaluationJournal(each).rows.get((prefix, name)) for each in live]
    return any(row is None or row["status"] == "queued" for row in rows)


def values_of(
    run: NodeRun, prefix: str, rows: Iterable[Mapping[str, Any]], metric: str, *, ended: bool
) -> Dict[str, Optional[float]]:
    """Values of a run's checkpoints by name: None until one was reported at their step or later, or evaluated by ``JOB``.

    Those of other ranks than 0 have none: by its own reports each rank would keep parts of other checkpoints.
    """
    values: Dict[str, Optional[float]] = {row["name"]: None for row in rows}
    job, _, key = metric.partition(".")
    followers = [NodeRun(run.layout, each) for each in _followers(run) if key]
    specs = [(each, each.spec) for each in followers]
    of_job = [
        each for each, spec in specs if spec and spec["address"].split("[")[0] == f"job.{job}"
    ]
    for follower in of_job:
        for each in EvaluationJournal(follower).rows.values():
            if each["run"] == prefix and each["name"] in values and each["status"] == "completed":
                values[each["name"]] = each["values"].get(key)
    is_first = not any(row["rank"] for row in rows)
    points = None if of_job or not is_first else points_of(run, [metric]).get(metric)
    if points is not None:
        last = math.inf if ended else points.columns()[1][-1]
        for row in rows:
            if row.get("step") is not None and row["step"] <= last:
                values[row["name"]] = points.value_at(row["step"])
    return values


def _followers(run: NodeRun) -> List[str]:
    return list((read_json(run.directory / _FOLLOWERS) or {}).get("runs", ()))
