"""Who brings what into a directory that several machines share. It saves bandwidth; nothing is wrong if two do the same."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Optional, Type

from trainctl.base.below import read, remove, touch
from trainctl.base.files import create_once
from trainctl.base.lease import RENEW_SECONDS, Liveness


class Claim:
    """``if claim.take(): with claim: …`` A claim that is held is renewed; one that nobody renews is taken over."""

    def __init__(self, root: Path, path: Path, liveness: Liveness) -> None:
        self._root = root
        self._path = path
        self._liveness = liveness
        self._word = os.urandom(16).hex().encode()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def take(self) -> bool:
        """Claim it, if nobody alive has."""
        with contextlib.suppress(FileNotFoundError):
            found = self._path.lstat()
            if self._liveness.is_stale(str(self._path), (found.st_ino, found.st_mtime_ns)):
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
        while not self._done.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):
                touch(self._root, self._path)
