"""When a log's bytes were written, from the index beside it. See DESIGN.md, "Logs"."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple, Optional, Tuple

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
