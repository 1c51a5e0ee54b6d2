"""Index of a run's log, by time. See DESIGN.md, "Logs and metrics"."""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import BinaryIO, List, NamedTuple, Optional, Tuple

from trainctl.base.system.syscalls import punch_hole


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
                self._shorten(status.st_size)

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

    def _shorten(self, size: int) -> None:
        """Keep the first eighth of the limit, and its half at the end."""
        begin = self._limit // 8 // _BLOCK * _BLOCK
        end = (size - self._limit // 2) // _BLOCK * _BLOCK
        descriptor = os.open(self._log, os.O_WRONLY)
        try:
            punch_hole(descriptor, begin, end - begin)
        except OSError:
            self._can_punch = False  # unsupported by the file system: keep the log
        finally:
            os.close(descriptor)
