"""A log's lines as they are asked for: since when, until when, how many, which, and those to come."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Iterator, Mapping, NamedTuple, Optional, Pattern, Tuple

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import read_json
from trainctl.base.protocol.runs import ReadLinesRequest
from trainctl.node.runs import record as runs
from trainctl.node.runs.log_index import LogIndex, LogIndexEntry
from trainctl.node.runs.record import PREPARE, NodeRun
from trainctl.node.system.layout import Layout

_BUFFER_BYTES = 2**18
_MAX_LINE = 2**20
_POLL_SECONDS = 0.2
_OPEN_LINE_SECONDS = 1.0
_HEARTBEAT_SECONDS = 5.0

Write = Callable[[bytes], None]


class LineFilter(NamedTuple):
    """What of a log is wanted. Times are Unix seconds."""

    offset: int
    since: Optional[float]
    until: Optional[float]
    pattern: Optional[Pattern[str]]
    tail: Optional[int]
    follow: bool
    open_end: bool

    @classmethod
    def of(cls, request: ReadLinesRequest) -> LineFilter:
        """Read a request; Failure for a pattern that this Python can't read."""
        try:
            pattern = re.compile(request["grep"]) if request["grep"] is not None else None
        except re.error as error:
            raise Failure("request", f"the pattern can't be read: {error}") from None
        since, until = _to_timestamp(request["since"]), _to_timestamp(request["until"])
        follow, open_end = request["follow"], request["open_end"]
        return cls(request["offset"], since, until, pattern, request["tail"], follow, open_end)


def read_lines(request: ReadLinesRequest, write: Write) -> None:
    """Frames: a line of JSON, ``{time, bytes, next, open}`` with so many bytes after it, or ``{skipped_bytes, next}``, ``{prepared_by}``
    where another run has what is asked for, or ``{}``.

    The bytes are whole lines, but for those of a frame that is ``open``: the last one goes on in the next frame.
    ``next`` is the offset from which another call would go on. An empty frame is a sign of life.
    """
    run = NodeRun(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise Failure("missing", f"the node knows no run {run.key}")
    asked = LineFilter.of(request)
    rank, prepare = request["rank"], request["prepare"]
    path = run.log(rank, PREPARE if prepare else "")
    elsewhere = run.prepared_by(rank) if prepare else None
    stream = _open(path, elsewhere, run, asked.follow, write)
    if stream is None:
        other = read_json(elsewhere) if elsewhere else None
        if other:
            write(_json_line({"prepared_by": other["name"]}))
        return
    times = LogIndex(path.with_suffix(".times"))
    try:
        _LogReader(stream, times, asked, write, run).read()
    finally:
        times.close()
        os.close(stream)


def _open(
    path: Path, elsewhere: Optional[Path], run: NodeRun, follow: bool, write: Write
) -> Optional[int]:
    """The log, once there is one; None if there will be none, as the run is over or another one has it: there is ``elsewhere`` then."""
    told = time.monotonic()
    while True:
        over = not follow or bool(elsewhere and elsewhere.exists()) or _has_ended(run)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if over:
                return None
        told = _write_heartbeat(told, write)
        time.sleep(_POLL_SECONDS)


class _LogReader:
    """One walk over one log, from where it was asked to begin."""

    def __init__(
        self, stream: int, times: LogIndex, asked: LineFilter, write: Write, run: NodeRun
    ) -> None:
        self._stream = stream
        self._times = times
        self._asked = asked
        self._run = run
        self._end = self._size
        if asked.until is not None:
            offset, later = times.before(asked.until)
            self._end = _line_start(stream, min(offset, self._end)) if later else self._end
        self._lines = _LineWriter(asked, write)
        self._write = write
        self._told = time.monotonic()

    @property
    def _size(self) -> int:
        return os.fstat(self._stream).st_size

    def read(self) -> None:
        """To the present end, or to the run's."""
        at = self._begin()
        at = self._to(at, self._end)
        self._lines.release_tail()
        if self._asked.follow:
            self._follow(at)
        if not self._asked.open_end:
            self._lines.close_line(self._end)

    def _begin(self) -> int:
        asked = self._asked
        at = asked.offset
        if asked.since is not None:
            offset, _ = self._times.before(asked.since)
            at = max(at, _line_start(self._stream, min(offset, self._end)))
        if asked.tail is not None and asked.pattern is None:
            at = max(at, _last_lines(self._stream, at, self._end, asked.tail))
        return at

    def _follow(self, at: int) -> None:
        while True:
            over = _has_ended(self._run)
            before = at
            at = self._to(at, self._size)
            self._end = at
            if over:
                return
            self._lines.show_open()
            if at == before:
                self._told = _write_heartbeat(self._told, self._write)
                time.sleep(_POLL_SECONDS)

    def _to(self, at: int, end: int) -> int:
        """Read on to an offset, and report holes."""
        while at < end:
            data = _seek(self._stream, at, os.SEEK_DATA, end)
            if data > at:
                self._lines.leave_out(data - at, self._mark(at).time, data)
                at = data
                continue
            mark = self._mark(at)
            hole = _seek(self._stream, at, os.SEEK_HOLE, end)
            piece = os.pread(self._stream, min(hole, mark.offset, end, at + _BUFFER_BYTES) - at, at)
            if not piece:
                break
            if _seek(self._stream, at, os.SEEK_DATA, end) > at:
                continue  # punched while it was read
            at += len(piece)
            self._lines.take(piece, mark.time, at)
            # A search may find nothing for long.
            self._told = _write_heartbeat(self._told, self._write)
        return at

    def _mark(self, at: int) -> LogIndexEntry:
        """When the byte there was written, and where those begin of which that isn't known."""
        return self._times.until(at) or LogIndexEntry(os.fstat(self._stream).st_mtime, sys.maxsize)


class _LineWriter:
    """Puts lines together, keeps those that are wanted, and writes them as frames."""

    def __init__(self, asked: LineFilter, write: Write) -> None:
        self._pattern = asked.pattern
        self._tail: Optional[Deque[Tuple[bytes, float, int]]] = None
        if asked.tail is not None and asked.pattern is not None:
            self._tail = deque(maxlen=asked.tail)
        self._write = write
        self._rest = b""
        self._at = asked.offset
        self._time = 0.0
        self._cut = False
        self._since = time.monotonic()

    def take(self, piece: bytes, moment: float, offset: int) -> None:
        """The log's next bytes, written at a moment, up to an offset."""
        if not self._rest:
            self._since = time.monotonic()
        self._time, self._at = moment, offset
        whole, newline, rest = piece.rpartition(b"\n")
        if newline:
            self._emit(self._rest + whole, offset - len(rest))
            self._rest = rest
            self._since = time.monotonic()
        else:
            self._rest += piece
        if len(self._rest) > _MAX_LINE:
            self._show_start()

    def show_open(self) -> None:
        """The beginning of a line that has not ended for a moment: a prompt, a progress bar."""
        if self._rest and time.monotonic() - self._since >= _OPEN_LINE_SECONDS:
            self._show_start()

    def leave_out(self, count: int, moment: float, offset: int) -> None:
        """Say that bytes are gone."""
        self._rest = self._rest.rstrip(b"\0")
        self.close_line(offset - count)
        self._write(_json_line({"skipped_bytes": count, "time": moment, "next": offset}))
        self._cut = True

    def close_line(self, offset: int) -> None:
        """A line that has no end."""
        if self._rest:
            self._emit(self._rest, offset)
            self._rest = b""

    def release_tail(self) -> None:
        """From now on every line that is wanted is written."""
        kept, self._tail = self._tail, None
        for line, moment, offset in kept or ():
            self._frame(line + b"\n", moment, offset)

    def _show_start(self) -> None:
        rest, self._rest = self._rest, b""
        self._since = time.monotonic()
        if self._pattern is not None:
            self._emit(rest, self._at)
        else:
            self._frame(rest, self._time, self._at, open_=True)

    def _emit(self, text: bytes, offset: int) -> None:
        """Lines without the last one's end."""
        if self._cut:  # what is left of a block of which a part was punched out
            text, self._cut = text.lstrip(b"\0"), False
        pattern = self._pattern
        if pattern is None:
            self._frame(text + b"\n", self._time, offset)
            return
        lines = text.split(b"\n")
        matching = [line for line in lines if pattern.search(line.decode("utf-8", "replace"))]
        if self._tail is not None:
            self._tail.extend((line, self._time, offset) for line in matching)
        elif matching:
            self._frame(b"\n".join(matching) + b"\n", self._time, offset)

    def _frame(self, data: bytes, moment: float, offset: int, open_: bool = False) -> None:
        head = {"time": moment, "bytes": len(data), "next": offset, "open": open_}
        self._write(_json_line(head) + data)


def _to_timestamp(value: Optional[Mapping[str, float]]) -> Optional[float]:
    """Unix seconds of ``{at}``, or of ``{ago}`` by this machine's clock, which the log's times are of."""
    if value is None:
        return None
    return float(value["at"]) if "at" in value else time.time() - float(value["ago"])


def _json_line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _has_ended(run: NodeRun) -> bool:
    status = run.status()
    return status is None or status["status"] in runs.ENDED or status["status"] == runs.LOST


def _write_heartbeat(told: float, write: Write) -> float:
    """Write an empty frame now and then, which also detects that the reader is gone."""
    now = time.monotonic()
    if now - told < _HEARTBEAT_SECONDS:
        return told
    write(_json_line({}))
    return now


def _seek(stream: int, at: int, what: int, end: int) -> int:
    """The next data or hole, at most ``end``."""
    try:
        return min(os.lseek(stream, at, what), end)
    except OSError:  # no data behind it
        return end


def _line_start(stream: int, offset: int) -> int:
    """Where the line begins in which the offset lies, if it is not too long."""
    begin = max(0, offset - _MAX_LINE)
    before = os.pread(stream, offset - begin, begin)
    found = before.rfind(b"\n") + 1
    return begin + found if found or begin == 0 else offset


def _last_lines(stream: int, begin: int, end: int, count: int) -> int:
    """Where the last ``count`` lines begin."""
    if count == 0:
        return end
    at, left = end, count + 1
    for start, piece in _read_backwards(stream, begin, end):
        if at == end and not piece.endswith(b"\n"):
            left -= 1  # the last line has no end
        at = start
        while left and piece:
            piece, newline, _ = piece.rpartition(b"\n")
            left -= 1 if newline else 0
            if newline and not left:
                return start + len(piece) + 1
            if not newline:
                break
    return begin


def _read_backwards(stream: int, begin: int, end: int) -> Iterator[Tuple[int, bytes]]:
    at = end
    while at > begin:
        start = max(begin, at - _BUFFER_BYTES)
        if _seek(stream, start, os.SEEK_DATA, at) < at:
            yield start, os.pread(stream, at - start, start)
        at = start
