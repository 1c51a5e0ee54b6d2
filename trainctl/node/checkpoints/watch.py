"""What a job writes to its checkpoints, watched: which file is finished, which checkpoint whole. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import time
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from trainctl.base.checkpoints.ranking import kind
from trainctl.base.failure import Failure
from trainctl.node.checkpoints.describe import known_by
from trainctl.node.runs.saved import File, Saved, being_written

SETTLE_SECONDS = 5.0
QUIET_SECONDS = 60.0


class End(NamedTuple):
    """How a run ended: ``orderly`` by itself or as it was told to, not killed; ``at`` in Unix seconds; ``record`` for run.json."""

    orderly: bool
    at: float
    record: Mapping[str, Any]


class Watch:
    """Remembers since when each file is as it is: by this process's clock, which neither a job nor a person can set."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settle = float(settings.get("settle_seconds", SETTLE_SECONDS))
        self._quiet = float(settings.get("quiet_seconds", QUIET_SECONDS))
        self._saved: Sequence[Saved] = ()
        self._seen: Dict[Tuple[int, str], Dict[str, Tuple[File, float]]] = {}
        self._fewer: Dict[Tuple[int, str], float] = {}
        """When files of one were last found to be gone: all of it may be about to go."""
        self._gone: Dict[Tuple[int, str], float] = {}

    def look(self, saved: Sequence[Saved], end: Optional[End]) -> None:
        """Take note of all that lies there now; what doesn't any more is forgotten."""
        before = self._seen
        self._saved = saved
        self._seen = {(one.rank, one.name): self._since(one, end) for one in saved}
        known = {place: at for place, at in self._fewer.items() if place in self._seen}
        gone = [place for place, seen in self._seen.items() if before.get(place, {}).keys() - seen]
        self._fewer = {**known, **dict.fromkeys(gone, time.monotonic())}

    def gone(self, places: Collection[Tuple[int, str]]) -> List[Tuple[int, str]]:
        """Those by rank and name of which nothing has lain here for as long as a checkpoint has to be quiet."""
        now = time.monotonic()
        away = [place for place in places if place not in self._seen]
        self._gone = {place: self._gone.get(place, now) for place in away}
        return [place for place, since in self._gone.items() if now - since >= self._quiet]

    def open_files(self, pending: Sequence[Saved]) -> Set[Tuple[int, int]]:
        """Of the files that haven't changed for a while those that somebody still has open for writing: device and inode."""
        settled = {(file.device, file.inode) for one in pending for file in self._settled(one)}
        return being_written(settled) if settled else set()

    def finished(self, one: Saved, writing: Set[Tuple[int, int]]) -> List[File]:
        """The files of a checkpoint that haven't changed for a while, and that are not among those ``open_files``."""
        return [file for file in self._settled(one) if (file.device, file.inode) not in writing]

    def due(self, one: Saved, end: Optional[End]) -> bool:
        """Whether nothing more can come: a newer one of its kind or a better exists, it was quiet for long, or the run ended in order."""
        if end is not None and end.orderly:
            return True
        changed = self._changed(one)
        may_be = kind({**_known(one), "type": None})  # what can be loaded may be about to come
        until = time.monotonic() - (max(0.0, time.time() - end.at) if end else 0.0)
        newer = any(
            other.rank == one.rank
            and other.name != one.name
            and (self._changed(other), other.modified) > (changed, one.modified)
            and kind(_known(other)) >= may_be
            for other in self._saved
        )
        quiet = until - max(changed, self._fewer.get((one.rank, one.name), changed))
        return quiet >= (self._settle if newer else self._quiet)

    def refuse_unfinished(self, one: Saved, end: End) -> None:
        """Failure for a checkpoint of an ended run that its end may have cut off."""
        if not self.due(one, end):
            raise Failure("changed", f"the run was killed while {one.name!r} may have been written")

    def _since(self, one: Saved, end: Optional[End]) -> Dict[str, Tuple[File, float]]:
        now = time.monotonic()
        before = self._seen.get((one.rank, one.name))
        seen = {}
        for file in one.files:
            known = (before or {}).get(file.path)
            if known is not None and known[0] == file:
                seen[file.path] = known
            elif end is not None and before is None:  # nobody watched: the file's own time must do
                seen[file.path] = (file, now - max(0.0, time.time() - file.modified / 1e9))
            else:
                seen[file.path] = (file, now)
        return seen

    def _settled(self, one: Saved) -> List[File]:
        now = time.monotonic()
        seen = self._seen[one.rank, one.name].values()
        return [file for file, since in seen if now - since >= self._settle]

    def _changed(self, one: Saved) -> float:
        return max(since for _, since in self._seen[one.rank, one.name].values())


def _known(one: Saved) -> Dict[str, Any]:
    """By which it is seen that logs that are written on beside a checkpoint don't say that it is finished."""
    return known_by(one.directory, one.name, {file.path for file in one.files})
