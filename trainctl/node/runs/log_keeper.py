"""Keeps a run's log readable by time and bounded on disk, while the job itself writes to the file. See DESIGN.md, "Logs"."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from trainctl.base.syscalls import punch_hole

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
