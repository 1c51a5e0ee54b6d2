"""Which files of a job's checkpoints are finished, and which checkpoints are complete. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from trainctl.base.checkpoints.ranking import kind
from trainctl.base.protocol.spec import Store
from trainctl.node.checkpoints.describe import step_of
from trainctl.node.checkpoints.saved import File, Inode, Place, Saved, open_for_writing

SETTLE_SECONDS = 5.0
QUIET_SECONDS = 60.0


class End(NamedTuple):
    """How a run ended: ``orderly`` if not killed; ``at`` in Unix seconds; ``record`` for run.json."""

    orderly: bool
    at: float
    record: Mapping[str, Any]


class _Seen(NamedTuple):
    """A checkpoint with the times, by this process's clock, since when each file is as it is and when files disappeared last."""

    saved: Saved
    since: Dict[File, float]
    removed: float

    @property
    def changed(self) -> float:
        """When a file was last written."""
        return max(self.since.values())

    @property
    def kind(self) -> int:
        """Its rank among others: logs written beside a checkpoint don't say that it is finished."""
        one = self.saved
        step = step_of(one.directory, one.name, [file.path for file in one.files])
        return kind({"name": one.name, "step": step})


class Watch:
    """Remembers since when each file is as it is, by a clock that neither jobs nor people set."""

    def __init__(self, settings: Store) -> None:
        self._settle = settings.get("settle_seconds", SETTLE_SECONDS)
        self._quiet = settings.get("quiet_seconds", QUIET_SECONDS)
        self._seen: Dict[Place, _Seen] = {}

    def look(self, saved: Sequence[Saved], end: Optional[End]) -> None:
        """Note all checkpoints that exist now, and forget others."""
        self._seen = {one.place: self._note(one, end) for one in saved}

    def open_files(self, pending: Sequence[Saved]) -> Set[Inode]:
        """The files of these checkpoints that haven't changed for a while and are still open for writing."""
        return open_for_writing({file.inode for one in pending for file in self._settled(one)})

    def finished(self, one: Saved, writing: Set[Inode]) -> List[File]:
        """The files of a checkpoint that haven't changed for a while, and aren't open for writing."""
        return [file for file in self._settled(one) if file.inode not in writing]

    def due(self, one: Saved, end: Optional[End]) -> bool:
        """Whether nothing more is expected: a newer one of its kind exists, it was quiet for long, or the run ended orderly."""
        if end is not None and end.orderly:
            return True
        seen = self._seen[one.place]
        newer = any(
            other.saved.rank == one.rank
            and other.saved.name != one.name
            and (other.changed, other.saved.modified) > (seen.changed, one.modified)
            and other.kind >= seen.kind
            for other in self._seen.values()
        )
        until = time.monotonic() - (max(0.0, time.time() - end.at) if end else 0.0)
        quiet = until - max(seen.changed, seen.removed)
        return quiet >= (self._settle if newer else self._quiet)

    def _note(self, one: Saved, end: Optional[End]) -> _Seen:
        now = time.monotonic()
        known = self._seen.get(one.place)
        since = {}
        for file in one.files:
            if known is not None and file in known.since:
                since[file] = known.since[file]
            elif (
                known is None and end is not None
            ):  # the uploader was dead: use the file's own time
                since[file] = now - max(0.0, time.time() - file.modified / 1e9)
            else:
                since[file] = now
        if known is None:
            return _Seen(one, since, min(since.values()))
        fewer = {file.path for file in known.since} - {file.path for file in since}
        return _Seen(one, since, now if fewer else known.removed)

    def _settled(self, one: Saved) -> List[File]:
        now = time.monotonic()
        since = self._seen[one.place].since
        return [file for file, began in since.items() if now - began >= self._settle]
