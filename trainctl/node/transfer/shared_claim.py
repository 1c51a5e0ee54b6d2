"""Who brings what into a directory that several machines share. It saves bandwidth; nothing is wrong if two do the same."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Dict, Optional, Tuple, Type

from trainctl.base.below import read, remove, touch
from trainctl.base.files import create_once

_BEAT_SECONDS = 5.0
STALE_SECONDS = 30.0


class Watch:
    """What others' claims looked like, and since when on this machine's own clock: clocks of machines are not compared."""

    def __init__(self, stale_seconds: float = STALE_SECONDS) -> None:
        self._stale = stale_seconds
        self._seen: Dict[Path, Tuple[Tuple[int, int], float]] = {}

    def is_dead(self, path: Path) -> bool:
        """Whether a claim has not been renewed for as long as this has been watching it."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        now, mark = time.monotonic(), (found.st_ino, found.st_mtime_ns)
        before = self._seen.get(path)
        if before is None or before[0] != mark:
            self._seen[path] = mark, now
            return False
        return now - before[1] >= self._stale


class Claim:
    """``if claim.take(): with claim: …`` A claim that is held is renewed; one that nobody renews is taken over."""

    def __init__(self, root: Path, path: Path, watch: Watch) -> None:
        self._root = root
        self._path = path
        self._watch = watch
        self._word = os.urandom(16).hex().encode()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def take(self) -> bool:
        """Claim it, if nobody alive has."""
        if self._watch.is_dead(self._path):
            remove(self._root, self._path)
        return create_once(self._path, self._word)

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._done.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if read(self._root, self._path) == self._word:
                remove(self._root, self._path)

    def _renew(self) -> None:
        while not self._done.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):
                touch(self._root, self._path)
