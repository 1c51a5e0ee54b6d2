"""Every number that a job reports, kept with its step and time over all attempts of a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Collection, Dict, Iterable, Optional

from trainctl.base.filesystem.files import read_json, write_atomic
from trainctl.base.points import MAX_KEYS, KeyPoints, RunPoints, points_json
from trainctl.base.protocol.runs import KeyResult, PointsRequest, PointsResponse
from trainctl.node.runs.event_files import read_scalars
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

PLACES = frozenset({"step", "total", "remaining_seconds"})
"""Names of numbers that are no results."""
_MAX_NAME = 64
_MAX_LINE = 2**16
_EARLIEST = 1e9  # a smaller ``time`` isn't in Unix seconds
_SPREAD_SECONDS = 10.0  # between two readings
_SECONDS, _LAST_SECONDS = 5.0, 60.0
_UNREAD = {"inode": 0, "offset": 0, "step": None, "read_at": 0.0}
_EVENT_FOLDERS = frozenset({"train", "training", "val", "valid", "validation", "eval", "test"})
"""Names of directories of event files that tell equal tags apart, as those of Keras."""


class PointLog:
    """Points of a run and how far its reports were read, in one file: a line of JSON, then the columns of each key."""

    def __init__(self, run: NodeRun, *, with_points: bool = True) -> None:
        self._run = run
        self.points: RunPoints = {}
        self._stored = b""
        self._head: Dict[str, Any] = {**_UNREAD, "event_files": {}, "event_keys": []}
        # An empty or truncated file is that of a power failure.
        with contextlib.suppress(FileNotFoundError, ValueError), run.points.open("rb") as stream:
            line = stream.readline()
            head = json.loads(line)
            points = {key: KeyPoints(row) for key, row in head.pop("keys").items()}
            for of_key in points.values() if with_points else ():
                of_key.load(stream.read(of_key.size))
            self._stored, self._head, self.points = line, head, points

    @property
    def results(self) -> Dict[str, KeyResult]:
        """Last, lowest and highest value of each key."""
        return {key: points.result for key, points in self.points.items()}

    def read_lines(self, seconds: float, *, is_over: bool = False) -> None:
        """Add the points of new lines for at most so long; lines without a time are spread over that since the last reading.

        ``is_over``: nothing is added any more, and the last line may lack its end.
        """
        head, deadline = self._head, time.monotonic() + seconds
        with contextlib.suppress(FileNotFoundError), self._run.progress_lines.open("rb") as stream:
            facts = os.fstat(stream.fileno())
            if facts.st_ino != head["inode"] or facts.st_size < head["offset"]:
                head.update(inode=facts.st_ino, offset=0, step=None)
            begin = stream.seek(head["offset"])
            since = max(head["read_at"], facts.st_mtime - _SPREAD_SECONDS)
            head["read_at"] = until = max(since, facts.st_mtime)
            while time.monotonic() < deadline:
                line = stream.readline(_MAX_LINE)
                is_partial = not line.endswith(b"\n") and len(line) < _MAX_LINE
                if not line or (is_partial and not is_over):
                    break
                head["offset"] += len(line)
                part = (head["offset"] - begin) / max(1, facts.st_size - begin)
                self._add(line, since + (until - since) * min(part, 1.0))

    def _add(self, line: bytes, seen: float) -> None:
        numbers = numbers_of([line])
        given = numbers.get("time", 0.0)
        if given > _EARLIEST:
            del numbers["time"]
            seen = given
        self._head["step"] = step = numbers.get("step", self._head["step"])
        for name, value in numbers.items():
            if points := self.points.get(name) or self._new_points(name):
                points.add(value, step, seen)

    def _new_points(self, name: str) -> Optional[KeyPoints]:
        name = name[:_MAX_NAME]
        if name in PLACES or (name not in self.points and len(self.points) >= MAX_KEYS):
            return None
        return self.points.setdefault(name, KeyPoints())

    def read_event_files(self, seconds: float) -> None:
        """Add new scalars of TensorBoard's files for at most so long, but not of keys that lines have."""
        deadline, offsets = time.monotonic() + seconds, self._head["event_files"]
        for path in (read_json(self._run.disk_usage) or {}).get("event_files", ()):
            end, folder = -1, Path(path).parent.name
            prefix = f"{folder}/" if folder in _EVENT_FOLDERS else ""
            while end != offsets.setdefault(path, 0) and time.monotonic() < deadline:
                end = offsets[path]
                with contextlib.suppress(OSError):
                    scalars, offsets[path] = read_scalars(path, end)
                    for tag, value, step, at in scalars:
                        self._add_scalar((prefix + tag)[:_MAX_NAME], value, step, at)

    def _add_scalar(self, name: str, value: float, step: int, at: float) -> None:
        keys = self._head["event_keys"]
        is_own = name not in self.points or name in keys
        is_finite = math.isfinite(value) and math.isfinite(at)
        points = self._new_points(name) if is_own and is_finite else None
        if points:
            keys += [] if name in keys else [name]
            points.add(value, step, at)

    def store(self) -> None:
        """Store what was added; OSError changes nothing."""
        rows = {key: points.row for key, points in self.points.items()}
        head = json.dumps({**self._head, "keys": rows}).encode() + b"\n"
        if head != self._stored:
            columns = (column for points in self.points.values() for column in points.kept)
            data = chain([head], (column.tobytes() for column in columns))
            write_atomic(self._run.points, data, durable=False)


def stored_results(run: NodeRun) -> Optional[Dict[str, KeyResult]]:
    """Return the results that were stored last."""
    return PointLog(run, with_points=False).results or None


def update_results(run: NodeRun, *, is_over: bool = False) -> Dict[str, KeyResult]:
    """Add what a job has reported to the points of all attempts, and store them; results by key.

    If the disk is full, the next call adds them again. At most 100 keys are kept.
    """
    log, seconds = PointLog(run), _LAST_SECONDS if is_over else _SECONDS
    log.read_lines(seconds, is_over=is_over)
    log.read_event_files(seconds)
    with contextlib.suppress(OSError):
        log.store()
    return log.results


def begin_attempt(run: NodeRun) -> None:
    """Store the points of an earlier attempt and discard its progress; OSError if that fails."""
    log = PointLog(run)
    log.read_lines(math.inf, is_over=True)
    log.store()
    step = run.evaluated_step
    first = b"" if step is None else json.dumps({"step": step}).encode() + b"\n"
    write_atomic(run.progress_lines, first, durable=False)


def points_of(run: NodeRun, keys: Optional[Collection[str]] = None) -> RunPoints:
    """Return the points that a run has reported up to now, of all keys or some; writes nothing."""
    log = PointLog(run)
    log.read_lines(_SECONDS, is_over=True)
    return {key: of for key, of in log.points.items() if keys is None or key in keys}


def read_points(request: PointsRequest, emit: Callable[[Dict[str, Any]], None]) -> PointsResponse:
    """Return the points of runs; none of a run that doesn't exist here."""
    layout, keys = Layout(request["root"]), request["keys"]
    return {
        "runs": {
            key: points_json(points_of(NodeRun(layout, key), keys), since)
            for key, since in request["runs"].items()
        }
    }


def numbers_of(lines: Iterable[bytes]) -> Dict[str, float]:
    """Return the last finite number of each name in lines of JSON."""
    row: Dict[str, float] = {}
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            for name, number in value.items() if isinstance(value, dict) else ():
                if type(number) in (int, float) and abs(number) <= sys.float_info.max:
                    row[str(name)] = number
    return row
