"""The journal of a run's uploads, from which the next uploader resumes after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from trainctl.base.filesystem.files import modified_at, write_json
from trainctl.node.checkpoints.monitor import SavedFile
from trainctl.node.runs.record import upload_status

SYNCING = "SYNCING"
COMPLETED = "COMPLETED"

FileKey = Tuple[int, str, str]
"""Rank, checkpoint and path of a file."""


class UploadRecord(NamedTuple):
    """A file in the store, as it was when it was uploaded."""

    size: int
    modified: int
    sha256: str
    key: str

    def is_of(self, file: SavedFile) -> bool:
        """Whether the file is unchanged."""
        return (self.size, self.modified) == (file.size, file.modified)


class UploadJournal:
    """``uploads.jsonl`` and ``sync.json`` of a run's directory. An incomplete line is ignored."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "uploads.jsonl"
        self._sync = directory / "sync.json"
        self._said: Optional[Dict[str, Any]] = None
        self.files: Dict[FileKey, UploadRecord] = {}

    def load(self) -> None:
        """Read what an earlier uploader wrote."""
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

    def add(self, place: FileKey, uploaded: UploadRecord) -> None:
        """Record that the file is in the store."""
        self.files[place] = uploaded
        line = json.dumps([*place, *uploaded]).encode()
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(descriptor, b"\n" + line)
        finally:
            os.close(descriptor)

    def drop(self, place: FileKey) -> None:
        """Forget a file that isn't in the store."""
        self.files.pop(place, None)

    def heartbeat(self) -> None:
        """Record that an uploader watches now."""
        self._path.touch(0o600)

    @property
    def last_heartbeat(self) -> float:
        """When an uploader watched last, in Unix seconds; 0 if never."""
        return modified_at(self._path)

    @property
    def pending(self) -> List[str]:
        """Names of the checkpoints that were last reported as not uploaded."""
        return list(upload_status(self._sync.parent).get("pending") or ())

    def say(self, state: str, error: Optional[str], pending: List[str]) -> None:
        """Report the state of the upload; written when it changes."""
        now = {"state": state, "error": error, "pending": pending[:100]}
        if now != self._said:
            write_json(self._sync, now)
            self._said = now
