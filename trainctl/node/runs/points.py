"""Every number that a job reports, kept with its step and time over all attempts of a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import (
    Any,
    BinaryIO,
    Callable,
    Collection,
    Deque,
    Dict,
    Iterable,
    Mapping,
    Optional,
    Tuple,
)

from trainctl.base.clock import Stopwatch
from trainctl.base.filesystem.files import make_directory, read_json, write_atomic, write_json
from trainctl.base.points import (
    MAX_BYTES,
    MAX_KEYS,
    POINT_BYTES,
    KeyPoints,
    RunPoints,
    points_json,
)
from trainctl.base.protocol.runs import KeyResult, PointsRequest, PointsResponse
from trainctl.base.system.syscalls import punch_hole
from trainctl.node.runs.event_files import read_scalars
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

PLACES = frozenset({"step", "total", "remaining_seconds"})
"""Names of numbers that are no results."""
HEAD_BYTES = 2**12
TAIL_BYTES = 2**16
"""Bytes at both ends of the lines that are never freed."""
_MAX_NAME = 64
_MAX_LINE = 2**16
_EARLIEST = 1e9  # a smaller ``time`` isn't in Unix seconds
_FREE_BYTES = 2**24
_STORE_LINES = 50_000
_BEFORE_BYTES = 64
_SECONDS = 5.0
_LAST_SECONDS = 60.0
_ATTEMPTS = 5
_EMPTY: Mapping[str, Any] = {"offset": 0, "step": None, "before": "", "event_keys": ()}
_EVENT_FOLDERS = frozenset({"train", "training", "val", "valid", "validation", "eval", "test"})
"""Names of directories of event files that tell equal tags apart, as those of Keras."""


class ProgressTimes:
    """Chore that notes when lines were added, to the second of its calls; unaffected by changes of the clock."""

    def __init__(self, run: NodeRun) -> None:
        self._path = run.progress_lines
        self._clock = Stopwatch()
        self._sizes: Deque[Tuple[float, int]] = deque(maxlen=10_000)

    def __call__(self) -> None:
        """Note the size of the file if it has changed."""
        with contextlib.suppress(OSError):
            size, last = self._path.stat().st_size, self._sizes[-1][1] if self._sizes else 0
            if size < last:
                self._sizes.clear()
            if size != last:
                self._sizes.append((self._clock.now, size))

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self._clock.now

    def at(self, offset: int) -> float:
        """Return when the bytes before the offset were there; to be called with rising offsets."""
        while self._sizes and self._sizes[0][1] < offset:
            self._sizes.popleft()
        return self._sizes[0][0] if self._sizes else self.now


class PointLog:
    """Points of a run: a file of the kept ones of each key, and ``results.json`` with all else.

    Lines are read once: ``results.json`` has the offset and the length of each file, and is replaced last.
    """

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        document = read_json(run.results) or {**_EMPTY, "keys": {}, "event_files": {}}
        self._offset: int = document["offset"]
        self._step: Optional[float] = document["step"]
        self._before: str = document["before"]  # bytes before the offset
        self._rows: Dict[str, Dict[str, Any]] = document["keys"]
        self._event_files: Dict[str, int] = document["event_files"]  # offsets by path
        self._event_keys = {*document["event_keys"]}
        self.points: RunPoints = {key: KeyPoints(row) for key, row in self._rows.items()}
        """Points by key; without ``load`` only new ones are kept."""

    @property
    def results(self) -> Dict[str, KeyResult]:
        """Last, lowest and highest value of each key."""
        return {key: points.result for key, points in self.points.items()}

    def load(self, keys: Optional[Collection[str]] = None) -> None:
        """Load the points of all keys, or of some and forget the others; FileNotFoundError if a file has been thinned."""
        for key, row in self._rows.items():
            if keys is not None and key not in keys:
                del self.points[key]
            else:
                self.points[key].kept = self._stored(row)

    def read_lines(self, times: Optional[ProgressTimes] = None, *, is_over: bool = False) -> bool:
        """Add the points of new lines; whether there are more than 50,000.

        ``is_over``: nothing is added any more, and the last line may lack its end.
        """
        with contextlib.suppress(FileNotFoundError), self._run.progress_lines.open("rb") as stream:
            self._seek(stream)
            now = min(time.time(), os.fstat(stream.fileno()).st_mtime) if times is None else 0.0
            lines = 0
            while lines < _STORE_LINES:
                line = stream.readline(_MAX_LINE)
                is_partial = not line.endswith(b"\n") and len(line) < _MAX_LINE
                if not line or (is_partial and not is_over):
                    break
                lines += 1
                self._offset += len(line)
                self._add(line, now if times is None else times.at(self._offset))
            stream.seek(max(0, self._offset - _BEFORE_BYTES))
            self._before = stream.read(min(self._offset, _BEFORE_BYTES)).decode("latin-1")
            return lines == _STORE_LINES
        return False

    def _seek(self, stream: BinaryIO) -> None:
        """Go to the first new line, which is the first line if the file was truncated or replaced."""
        start = self._offset - len(self._before)
        stream.seek(start)
        if stream.read(len(self._before)).decode("latin-1") != self._before:
            self._offset, self._step = 0, None
        stream.seek(self._offset)

    def _add(self, line: bytes, seen: float) -> None:
        numbers = numbers_of([line])
        given = numbers.get("time", 0.0)
        if given > _EARLIEST:
            del numbers["time"]
            seen = given
        self._step = step = numbers.get("step", self._step)
        for name, value in numbers.items():
            if points := self.points.get(name) or self._new_points(name):
                points.add(value, step, seen)

    def _new_points(self, name: str) -> Optional[KeyPoints]:
        name = name[:_MAX_NAME]
        if name in PLACES or (name not in self.points and len(self.points) >= MAX_KEYS):
            return None
        return self.points.setdefault(name, KeyPoints())

    def read_event_files(self, paths: Iterable[str], deadline: float) -> None:
        """Add new scalars of TensorBoard's files, but not of keys that lines have."""
        for path in paths:
            end, folder = -1, Path(path).parent.name
            prefix = f"{folder}/" if folder in _EVENT_FOLDERS else ""
            while end != self._event_files.setdefault(path, 0) and time.monotonic() < deadline:
                end = self._event_files[path]
                with contextlib.suppress(OSError, ValueError):
                    scalars, self._event_files[path] = read_scalars(path, end)
                    for tag, value, step, at in scalars:
                        self._add_scalar(prefix + tag, value, step, at)

    def _add_scalar(self, name: str, value: float, step: int, at: float) -> None:
        name = name[:_MAX_NAME]
        is_own = name not in self.points or name in self._event_keys
        is_finite = math.isfinite(value) and math.isfinite(at)
        points = self._new_points(name) if is_own and is_finite else None
        if points:
            self._event_keys.add(name)
            points.add(value, step, at)

    def begin_attempt(self, step: Optional[float] = None) -> None:
        """Read the lines of the next attempt from the first; ``step``: of lines before any that has one."""
        self._offset, self._step, self._before = 0, step, ""

    def store(self) -> None:
        """Store what was added since the last time, unless ``load`` was called; OSError changes nothing."""
        make_directory(self._run.points)
        obsolete = []
        for key, points in self.points.items():
            row = self._rows.setdefault(key, {"file": len(self._rows), "stride": 1, "stored": 0})
            path, size = self._path(row), row["stored"] * POINT_BYTES
            new, points.kept = points.kept, array("d")
            if size + len(new) * 8 > MAX_BYTES:
                obsolete += [path] if size else []
                points.kept = self._stored(row) + new
                points.thin()
                new, points.kept = points.kept, array("d")
                row.update(points.row)
                path, size = self._path(row), 0
            if new:
                with path.open("r+b" if size else "wb") as stream:
                    stream.seek(size)  # a killed process may have added more
                    stream.write(new.tobytes())
            row.update(points.row, stored=size // POINT_BYTES + len(new) * 8 // POINT_BYTES)
        document = {
            "offset": self._offset,
            "step": self._step,
            "before": self._before,
            "keys": self._rows,
            "event_files": self._event_files,
            "event_keys": sorted(self._event_keys),
        }
        write_json(self._run.results, document, durable=False)
        for path in obsolete:
            path.unlink()

    def drop_new(self) -> None:
        """Free the memory of points that were stored, or can't be."""
        for points in self.points.values():
            points.kept = array("d")

    def free_lines(self) -> None:
        """Free the disk space of lines that were read, but not of the first and last."""
        with contextlib.suppress(OSError), self._run.progress_lines.open("r+b") as stream:
            end = self._offset - TAIL_BYTES
            if os.fstat(stream.fileno()).st_blocks * 512 > _FREE_BYTES and end > HEAD_BYTES:
                punch_hole(stream.fileno(), HEAD_BYTES, end - HEAD_BYTES)

    def _path(self, row: Mapping[str, Any]) -> Path:
        return self._run.points / f"{row['file']}-{row['stride']}"

    def _stored(self, row: Mapping[str, Any]) -> array[float]:
        points = array("d")
        if row["stored"]:
            with self._path(row).open("rb") as stream:
                points.frombytes(stream.read(row["stored"] * POINT_BYTES))
        return points


def stored_results(run: NodeRun) -> Optional[Dict[str, KeyResult]]:
    """Return the results that were stored last."""
    return PointLog(run).results or None


def update_results(
    run: NodeRun,
    times: Optional[ProgressTimes] = None,
    event_files: Iterable[str] = (),
    *,
    is_over: bool = False,
) -> Dict[str, KeyResult]:
    """Add what a job has reported to the points of all attempts, and store them; results by key.

    If the disk is full, the next call adds them again. At most 100 keys are kept.
    """
    log, is_stored = PointLog(run), True
    deadline = time.monotonic() + (_LAST_SECONDS if is_over else _SECONDS)
    while log.read_lines(times, is_over=is_over) and time.monotonic() < deadline:
        is_stored = is_stored and _store(log)
        log.drop_new()
    log.read_event_files(event_files, deadline)
    if is_stored and _store(log):
        log.free_lines()
    return log.results


def _store(log: PointLog) -> bool:
    try:
        log.store()
    except OSError:
        return False
    return True


def begin_attempt(run: NodeRun, times: Optional[ProgressTimes] = None) -> None:
    """Store the points of an earlier attempt and discard its progress."""
    log = PointLog(run)
    while log.read_lines(times, is_over=True):
        log.store()
    log.store()
    write_atomic(run.progress_lines, b"", durable=False)
    log.begin_attempt(run.evaluated_step)
    log.store()


def points_of(run: NodeRun, keys: Optional[Collection[str]] = None) -> RunPoints:
    """Return the points that a run has reported up to now, of all keys or some; writes nothing."""
    for _ in range(_ATTEMPTS):
        log = PointLog(run)
        with contextlib.suppress(FileNotFoundError):  # thinned meanwhile
            log.load(keys)
            break
    deadline = time.monotonic() + _SECONDS
    while log.read_lines(is_over=True) and time.monotonic() < deadline:
        for points in log.points.values():
            points.thin()
    for points in log.points.values():
        points.thin()
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
