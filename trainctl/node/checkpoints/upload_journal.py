"""Journal of a run's uploads, from which the next uploader resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from trainctl.base.filesystem.files import modified_at, write_json
from trainctl.base.lazy_named_tuple import NamedTuple

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
