"""The index beside a run's log that says when its bytes were written, and the chore that writes it. See DESIGN.md, "Logs and metrics"."""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import BinaryIO, List, NamedTuple, Optional, Tuple

from trainctl.base.system.syscalls import punch_hole


class LogIndexEntry(NamedTuple):
    """By ``time``, in Unix seconds, the log had ``offset`` bytes."""

    time: float
    offset: int


class LogIndex:
    """The index of one log; it may be missing, and grows. The time of a byte is that of the first mark behind it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: Optional[BinaryIO] = None
        self._times: List[float] = []
        self._offsets: List[int] = []

    def before(self, moment: float) -> Tuple[int, bool]:
        """The offset before which all was written earlier than ``moment``; whether the index has a later mark."""
        self._refresh()
        at = bisect_left(self._times, moment)
        return self._offsets[at - 1] if at else 0, at < len(self._times)

    def until(self, offset: int) -> Optional[LogIndexEntry]:
        """The first mark behind the offset; None if there is none yet."""
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
        """Read what was appended, but for a last line that is incomplete."""
        if self._stream is None:
            try:
                self._stream = self._path.open("rb")
            except FileNotFoundError:
                return
        for line in iter(self._stream.readline, b""):
            if not line.endswith(b"\n"):
                self._stream.seek(-len(line), os.SEEK_CUR)
                return
            with contextlib.suppress(ValueError):  # torn by a crash
                moment, offset = line.split()
                mark = LogIndexEntry(float(moment), int(offset))
                self._times.append(mark.time)
                self._offsets.append(mark.offset)


LOG_BYTES = 2**30
"""The most disk that one rank's log takes."""

_BLOCK = 4096
_BLOCK_UNIT = 512  # of st_blocks, whatever the file system's own block is: stat(2)
_FIRST_INTERVAL = 1.0
_THINNING = 10_000


class LogTruncator:
    """A chore: notes when the log was how long, and frees the middle of one that is too long."""

    def __init__(self, log: Path, limit: int = LOG_BYTES) -> None:
        self._log = log
        self._times = log.with_suffix(".times")
        self._limit = limit
        self._began = self._last = 0.0
        self._size = 0
        self._holes = True

    def __call__(self) -> None:
        """Check the log once; a full disk or a missing file is ignored."""
        with contextlib.suppress(OSError):
            found = self._log.stat()
            self._note(found.st_size)
            if self._holes and found.st_blocks * _BLOCK_UNIT > self._limit:
                self._shorten(found.st_size)

    def finish(self) -> None:
        """Note the final length of the log."""
        with contextlib.suppress(OSError):
            self._note(self._log.stat().st_size, last=True)

    def _note(self, size: int, *, last: bool = False) -> None:
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
        """Keep an eighth of the limit at the beginning and half of it at the end."""
        begin = self._limit // 8 // _BLOCK * _BLOCK
        end = (size - self._limit // 2) // _BLOCK * _BLOCK
        descriptor = os.open(self._log, os.O_WRONLY)
        try:
            punch_hole(descriptor, begin, end - begin)
        except OSError:
            self._holes = False  # this file system can't; the log keeps all its bytes
        finally:
            os.close(descriptor)
