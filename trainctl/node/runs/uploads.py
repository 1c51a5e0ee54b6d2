"""What one run has brought to its store, written beside the run: so that an uploader that was killed goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, cast

from trainctl.base.files import read_json, write_json
from trainctl.base.protocol.runs import Sync
from trainctl.node.runs.saved import File

SYNCING = "SYNCING"
COMPLETED = "COMPLETED"

Place = Tuple[int, str, str]
"""Rank, checkpoint and path of a file."""


class Uploaded(NamedTuple):
    """A file that is in the store, as it was when it was brought there."""

    size: int
    modified: int
    sha256: str
    key: str

    def is_of(self, file: File) -> bool:
        """Whether the file has not changed since."""
        return (self.size, self.modified) == (file.size, file.modified)


class Uploads:
    """``uploads.jsonl`` and ``sync.json`` of a run's directory. A line that was not finished counts for nothing."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "uploads.jsonl"
        self._sync = directory / "sync.json"
        self._said: Optional[Dict[str, Any]] = None
        self.files: Dict[Place, Uploaded] = {}

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
            self.files[rank, name, path] = Uploaded(size, modified, sha256, key)

    def add(self, place: Place, uploaded: Uploaded) -> None:
        """The file is in the store now."""
        self.files[place] = uploaded
        line = json.dumps([*place, *uploaded]).encode()
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(descriptor, b"\n" + line)
        finally:
            os.close(descriptor)

    def drop(self, place: Place) -> None:
        """It isn't, or not any more."""
        self.files.pop(place, None)

    def beat(self) -> None:
        """Leave a mark of being alive: the mark's age says since when nobody watched."""
        self._path.touch(0o600)

    @property
    def beaten(self) -> float:
        """When the last mark was left, in Unix seconds; 0 if never."""
        try:
            return self._path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    @property
    def pending(self) -> List[str]:
        """What was last said not to be in the store yet."""
        return list(sync_of(self._sync.parent).get("pending") or ())

    def say(self, state: str, error: Optional[str], pending: List[str]) -> None:
        """How it stands, for whoever asks; written when it changes."""
        now = {"state": state, "error": error, "pending": pending[:100]}
        if now != self._said:
            write_json(self._sync, now)
            self._said = now


def sync_of(directory: Path) -> Sync:
    """State of a run's upload."""
    found: Any = read_json(directory / "sync.json")
    return cast("Sync", found) if isinstance(found, dict) else {}
