"""The index beside a run's log that says when its bytes were written, and the chore that writes it. See DESIGN.md, "Logs"."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple, Optional, Tuple

from trainctl.base.syscalls import punch_hole

_LONGEST = 64
"""More bytes than a line of the index has."""


class Mark(NamedTuple):
    """By ``time``, in Unix seconds, the log had ``offset`` bytes."""

    time: float
    offset: int


class Times:
    """The index of one log; it may be missing, and it grows meanwhile. A byte's time is that of the first mark behind it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: Optional[BinaryIO] = None
        self._next: Optional[Mark] = None

    def before(self, moment: float) -> Tuple[int, bool]:
        """The offset before which all was written earlier than ``moment``; whether the index knows of something later."""
        stream = self._open()
        if stream is None:
            return 0, False
        self._seek(stream, time=moment)
        found = 0
        while True:
            mark = _read(stream)
            if mark is None or mark.time >= moment:
                return found, mark is not None
            found = mark.offset

    def start(self, offset: int) -> None:
        """From now on ``until`` is asked about bytes from this offset on."""
        stream = self._open()
        if stream is not None:
            self._seek(stream, offset=offset)
        self._next = None

    def until(self, offset: int) -> Optional[Mark]:
        """The first mark behind the offset, None if there is none yet. Offsets never go back."""
        stream = self._open()
        while stream is not None and (self._next is None or self._next.offset <= offset):
            self._next = _read(stream)
            if self._next is None:
                break
        return self._next

    def close(self) -> None:
        """Let go of the index."""
        if self._stream is not None:
            self._stream.close()

    def _open(self) -> Optional[BinaryIO]:
        if self._stream is None:
            try:
                self._stream = self._path.open("rb")
            except FileNotFoundError:
                return None
        return self._stream

    def _seek(self, stream: BinaryIO, *, time: float = 0.0, offset: int = -1) -> None:
        """Go to a line that is earlier than what is looked for and near it; to the first if none is."""
        low, high = 0, os.fstat(stream.fileno()).st_size
        while high - low > _LONGEST:
            middle = (low + high) // 2
            _to_line(stream, middle)
            mark = _read(stream)
            early = mark is not None and (
                mark.offset <= offset if offset >= 0 else mark.time < time
            )
            low, high = (middle, high) if early else (low, middle)
        _to_line(stream, low)


def _to_line(stream: BinaryIO, at: int) -> None:
    """Go to the first line that begins behind the offset, or with it at the top."""
    stream.seek(at)
    if at:
        stream.readline()


def _read(stream: BinaryIO) -> Optional[Mark]:
    """The next mark; None, and nothing was read, where the last line is not whole yet."""
    while True:
        at = stream.tell()
        line = stream.readline()
        if not line.endswith(b"\n"):
            stream.seek(at)
            return None
        try:
            moment, offset = line.split()
            return Mark(float(moment), int(offset))
        except ValueError:
            continue  # torn by a crash


LOG_BYTES = 2**30
"""The most disk that one rank's log takes."""

_BLOCK = 4096
_BLOCK_UNIT = 512  # of st_blocks, whatever the file system's own block is: stat(2)
_FIRST_INTERVAL = 1.0
_THINNING = 10_000


class LogKeeper:
    """A chore: notes when the log was how long, and frees the middle of one that is too long."""

    def __init__(self, log: Path, limit: int = LOG_BYTES) -> None:
        self._log = log
        self._times = log.with_suffix(".times")
        self._limit = limit
        self._began = self._last = 0.0
        self._size = 0
        self._holes = True

    def __call__(self) -> None:
        """Look at the log once; a full disk or a missing file is nobody's problem here."""
        with contextlib.suppress(OSError):
            found = self._log.stat()
            self._note(found.st_size)
            if self._holes and found.st_blocks * _BLOCK_UNIT > self._limit:
                self._shorten(found.st_size)

    def finish(self) -> None:
        """Note the log's length now that nobody writes to it any more."""
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
