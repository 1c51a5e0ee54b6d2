"""Logs of runs: truncation, index of times, lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from bisect import bisect_left, bisect_right
from collections import deque
from pathlib import Path
from typing import (
    Any,
    BinaryIO,
    Callable,
    Deque,
    List,
    Mapping,
    Optional,
    Pattern,
    Tuple,
)

from trainctl.base.filesystem.files import read_json
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.runs import ReadLinesRequest
from trainctl.base.system.syscalls import keep_freed_memory, punch_hole
from trainctl.errors import NodeError, UnknownOnNode
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import PREPARE, NodeRun
from trainctl.node.system.layout import Layout


class LogIndexEntry(NamedTuple):
    """At ``time`` in Unix seconds the log had ``offset`` bytes."""

    time: float
    offset: int


class LogIndex:
    """Index of one log; a byte has the time of the first entry after it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: Optional[BinaryIO] = None
        self._times: List[float] = []
        self._offsets: List[int] = []

    def before(self, moment: float) -> Tuple[int, bool]:
        """Offset of the bytes written before ``moment``; whether later entries exist."""
        self._refresh()
        at = bisect_left(self._times, moment)
        return self._offsets[at - 1] if at else 0, at < len(self._times)

    def until(self, offset: int) -> Optional[LogIndexEntry]:
        """First entry after the offset; None if there is none yet."""
        if not self._offsets or self._offsets[-1] <= offset:
            self._refresh()
        at = bisect_right(self._offsets, offset)
        return (
            LogIndexEntry(self._times[at], self._offsets[at]) if at < len(self._offsets) else None
        )

    def close(self) -> None:
        """Close the index."""
        if self._stream is not None:
            self._stream.close()

    def _refresh(self) -> None:
        """Read appended entries, except for an incomplete last line."""
        if self._stream is None:
            try:
                self._stream = self._path.open("rb")
            except FileNotFoundError:
                return
        for line in iter(self._stream.readline, b""):
            if not line.endswith(b"\n"):
                self._stream.seek(-len(line), os.SEEK_CUR)
                return
            with contextlib.suppress(ValueError):  # truncated by a crash
                moment, offset = line.split()
                entry = LogIndexEntry(float(moment), int(offset))
                self._times.append(entry.time)
                self._offsets.append(entry.offset)


LOG_BYTES = 2**30
"""Maximum disk usage of one rank's log."""

_BLOCK = 4096
_BLOCK_UNIT = 512  # unit of st_blocks on every file system: stat(2)
_FIRST_INTERVAL = 1.0
_THINNING = 10_000


class LogTruncator:
    """Chore that indexes a log and frees the middle of one that is too long."""

    def __init__(self, log: Path, limit: int = LOG_BYTES) -> None:
        self._log = log
        self._times = log.with_suffix(".times")
        self._limit = limit
        self._began = self._last = 0.0
        self._size = 0
        self._can_punch = True

    def __call__(self) -> None:
        """Check the log once; ignores a full disk and a missing file."""
        with contextlib.suppress(OSError):
            status = self._log.stat()
            self._add_entry(status.st_size)
            if self._can_punch and status.st_blocks * _BLOCK_UNIT > self._limit:
                # keep the first eighth of the limit, and its half at the end
                begin = self._limit // 8 // _BLOCK * _BLOCK
                end = (status.st_size - self._limit // 2) // _BLOCK * _BLOCK
                descriptor = os.open(self._log, os.O_WRONLY)
                try:
                    punch_hole(descriptor, begin, end - begin)
                except OSError:
                    self._can_punch = False  # unsupported by the file system: keep the log
                finally:
                    os.close(descriptor)

    def finish(self) -> None:
        """Record the final length of the log."""
        with contextlib.suppress(OSError):
            self._add_entry(self._log.stat().st_size, last=True)

    def _add_entry(self, size: int, *, last: bool = False) -> None:
        now = time.time()
        self._began = self._began or now
        interval = max(_FIRST_INTERVAL, (now - self._began) / _THINNING)
        if size == self._size or (0 <= now - self._last < interval and not last):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(self._times, flags, 0o600), "w") as stream:
            stream.write(f"{now:.3f} {size}\n")
        self._last, self._size = now, size


_BUFFER_BYTES = 2**18
_MAX_LINE = 2**20
_POLL_SECONDS = 0.2
_OPEN_LINE_SECONDS = 1.0  # progress bars are rewritten more often
_HEARTBEAT_SECONDS = 5.0  # well below the client's timeout of a silent node

Write = Callable[[bytes], None]


class LineFilter(NamedTuple):
    """Selection of log lines. Times are Unix seconds."""

    request: ReadLinesRequest
    since: Optional[float]
    until: Optional[float]
    pattern: Optional[Pattern[str]]

    @classmethod
    def of(cls, request: ReadLinesRequest) -> LineFilter:
        """Parse a request; TrainctlError if the pattern is invalid."""
        try:
            pattern = re.compile(request["grep"]) if request["grep"] is not None else None
        except re.error as error:
            raise NodeError(f"invalid pattern: {error}") from None
        since, until = _to_timestamp(request["since"]), _to_timestamp(request["until"])
        return cls(request, since, until, pattern)


def read_lines(request: ReadLinesRequest, write: Write) -> None:
    """Write frames: ``{time, bytes, next, open}`` as JSON, then that many bytes.

    Others are ``{skipped_bytes, next}``, ``{prepared_by}`` if another run has the log, and ``{}`` as a heartbeat. Bytes
    are complete lines, unless ``open`` is set: then the last line continues in the next frame. ``next`` is the offset
    for another call to resume from.
    """
    run = NodeRun(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise UnknownOnNode(f"run {run.key} not found on the node")
    line_filter = LineFilter.of(request)
    rank, prepare = request["rank"], request["prepare"]
    path = run.log(rank, PREPARE if prepare else "")
    preparer = run.prepared_by(rank) if prepare else None
    stream = _open(path, preparer, run, request["follow"], write)
    if stream is None:
        other = read_json(preparer) if preparer else None
        if other:
            write(_json_line({"prepared_by": other["name"]}))
        return
    keep_freed_memory()
    times = LogIndex(path.with_suffix(".times"))
    try:
        _LogReader(stream, times, line_filter, write, run).read()
    finally:
        times.close()
        os.close(stream)


def _open(
    path: Path, preparer: Optional[Path], run: NodeRun, follow: bool, write: Write
) -> Optional[int]:
    """Wait for the log; None if there is none, or another run has it."""
    written_at = time.monotonic()
    while True:
        over = not follow or bool(preparer and preparer.exists()) or _has_ended(run)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if over:
                return None
        written_at = _write_heartbeat(written_at, write)
        time.sleep(_POLL_SECONDS)


class _LogReader:
    """One pass over a log."""

    def __init__(
        self, stream: int, times: LogIndex, filter_: LineFilter, write: Write, run: NodeRun
    ) -> None:
        self._stream = stream
        self._times = times
        self._filter = filter_
        self._run = run
        self._end = self._size
        if filter_.until is not None:
            offset, later = times.before(filter_.until)
            self._end = _line_start(stream, min(offset, self._end)) if later else self._end
        self._lines = _LineWriter(filter_, write)
        self._write = write
        self._written_at = time.monotonic()

    @property
    def _size(self) -> int:
        return os.fstat(self._stream).st_size

    def read(self) -> None:
        """Read to the current end, or to the run's end."""
        filter_ = self._filter
        request, at = filter_.request, filter_.request["offset"]
        if filter_.since is not None:
            offset, _ = self._times.before(filter_.since)
            at = max(at, _line_start(self._stream, min(offset, self._end)))
        if request["tail"] is not None and filter_.pattern is None:
            at = max(at, _last_lines(self._stream, at, self._end, request["tail"]))
        at = self._read_to(at, self._end)
        self._lines.flush_tail()
        if request["follow"]:
            self._follow(at)
        if not request["open_end"]:
            self._lines.close_line(self._end)

    def _follow(self, at: int) -> None:
        while True:
            over = _has_ended(self._run)
            before = at
            at = self._read_to(at, self._size)
            self._end = at
            if over:
                return
            self._lines.write_open_line()
            if at == before:
                self._written_at = _write_heartbeat(self._written_at, self._write)
                time.sleep(_POLL_SECONDS)

    def _read_to(self, at: int, end: int) -> int:
        """Read up to an offset, and report holes."""
        while at < end:
            entry = self._entry(at)
            stop = min(entry.offset, end, at + _BUFFER_BYTES)
            data = os.pread(self._stream, stop - at, at)
            if not data:
                break
            if b"\0" in data:  # a hole, maybe punched during the read; finding holes is slow
                start = _seek(self._stream, at, os.SEEK_DATA, end)
                if start > at:
                    self._lines.skip(start - at, entry.time, start)
                    at = start
                    continue
                data = data[: _seek(self._stream, at, os.SEEK_HOLE, end) - at]
            at += len(data)
            self._lines.add(data, entry.time, at)
            # A filter may match nothing for long.
            self._written_at = _write_heartbeat(self._written_at, self._write)
        return at

    def _entry(self, at: int) -> LogIndexEntry:
        """Time of a byte, and the offset up to which it applies."""
        return self._times.until(at) or LogIndexEntry(os.fstat(self._stream).st_mtime, sys.maxsize)


class _LineWriter:
    """Assemble lines, filter them and write them as frames."""

    def __init__(self, filter_: LineFilter, write: Write) -> None:
        self._pattern = filter_.pattern
        self._tail: Optional[Deque[Tuple[bytes, float, int]]] = None
        tail = filter_.request["tail"]
        if tail is not None and filter_.pattern is not None:
            self._tail = deque(maxlen=tail)
        self._write = write
        self._rest = b""
        self._at = filter_.request["offset"]
        self._time = 0.0
        self._follows_hole = False
        self._since = time.monotonic()

    def add(self, data: bytes, moment: float, offset: int) -> None:
        """Add the next bytes, written at ``moment``, up to ``offset``."""
        if not self._rest:
            self._since = time.monotonic()
        self._time, self._at = moment, offset
        end = data.rfind(b"\n") + 1
        if end:
            self._emit(self._rest + data[:end], offset - len(data) + end)
            self._rest = data[end:]
            self._since = time.monotonic()
        else:
            self._rest += data
        if len(self._rest) > _MAX_LINE:
            self._write_start()

    def write_open_line(self) -> None:
        """Write the start of a line that stays incomplete, such as a progress bar."""
        if self._rest and time.monotonic() - self._since >= _OPEN_LINE_SECONDS:
            self._write_start()

    def skip(self, count: int, moment: float, offset: int) -> None:
        """Report bytes that were freed."""
        self._rest = self._rest.rstrip(b"\0")
        self.close_line(offset - count)
        self._write(_json_line({"skipped_bytes": count, "time": moment, "next": offset}))
        self._follows_hole = True

    def close_line(self, offset: int) -> None:
        """Write a line that has no newline."""
        if self._rest:
            self._emit(self._rest + b"\n", offset)
            self._rest = b""

    def flush_tail(self) -> None:
        """Write the collected last lines, and all lines from now on."""
        lines, self._tail = self._tail, None
        for line, moment, offset in lines or ():
            self._frame(line + b"\n", moment, offset)

    def _write_start(self) -> None:
        rest, self._rest = self._rest, b""
        self._since = time.monotonic()
        if self._pattern is not None:
            self._emit(rest + b"\n", self._at)
        else:
            self._frame(rest, self._time, self._at, open_=True)

    def _emit(self, text: bytes, offset: int) -> None:
        """Filter and write complete lines."""
        if self._follows_hole:  # zeros at the start of a partly freed block
            text, self._follows_hole = text.lstrip(b"\0"), False
        pattern = self._pattern
        if pattern is None:
            self._frame(text, self._time, offset)
            return
        lines = text[:-1].split(b"\n")
        matching = [line for line in lines if pattern.search(line.decode("utf-8", "replace"))]
        if self._tail is not None:
            self._tail.extend((line, self._time, offset) for line in matching)
        elif matching:
            self._frame(b"\n".join(matching) + b"\n", self._time, offset)

    def _frame(self, data: bytes, moment: float, offset: int, open_: bool = False) -> None:
        head = {"time": moment, "bytes": len(data), "next": offset, "open": open_}
        self._write(_json_line(head) + data)


def _to_timestamp(value: Optional[Mapping[str, float]]) -> Optional[float]:
    """Unix seconds of ``{at}``, or of ``{ago}`` by this machine's clock."""
    if value is None:
        return None
    return float(value["at"]) if "at" in value else time.time() - float(value["ago"])


def _json_line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _has_ended(run: NodeRun) -> bool:
    status = run.status()
    return status is None or status["status"] in runs.ENDED or status["status"] == runs.LOST


def _write_heartbeat(written_at: float, write: Write) -> float:
    """Write an empty frame at intervals, which also detects that the reader is gone."""
    now = time.monotonic()
    if now - written_at < _HEARTBEAT_SECONDS:
        return written_at
    write(_json_line({}))
    return now


def _seek(stream: int, at: int, whence: int, end: int) -> int:
    """Offset of the next data or hole, at most ``end``."""
    try:
        return min(os.lseek(stream, at, whence), end)
    except OSError:  # no data after the offset
        return end


def _line_start(stream: int, offset: int) -> int:
    """Start of the line that contains the offset, unless the line is too long."""
    begin = max(0, offset - _MAX_LINE)
    before = os.pread(stream, offset - begin, begin)
    newline = before.rfind(b"\n") + 1
    return begin + newline if newline or begin == 0 else offset


def _last_lines(stream: int, begin: int, end: int, count: int) -> int:
    """Offset of the last ``count`` lines."""
    if count == 0:
        return end
    at, remaining, is_last = end, count + 1, True
    while at > begin:
        start = max(begin, at - _BUFFER_BYTES)
        data = b""
        if _seek(stream, start, os.SEEK_DATA, at) < at:  # otherwise it is a hole
            data = os.pread(stream, at - start, start)
            if is_last and not data.endswith(b"\n"):
                remaining -= 1  # the last line has no newline
            is_last = False
        at = start
        while remaining and data:
            data, newline, _ = data.rpartition(b"\n")
            remaining -= 1 if newline else 0
            if newline and not remaining:
                return start + len(data) + 1
            if not newline:
                break
    return begin
