"""Leases: when their holders count as dead, and leases that are files.

A holder renews its lease every ``RENEW_SECONDS``. Others may take it over if the holder's process is known to have
ended, or if they saw no renewal for ``STALE_SECONDS`` by their own clock: clocks of machines are never compared.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Optional, Tuple

from trainctl.base.clock import elapsed
from trainctl.base.filesystem.files import create_exclusive, open_file
from trainctl.base.system.processes import Process, describe_process, is_dead

RENEW_SECONDS = 5.0
STALE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_MAX_BYTES = 1000


def holder_name() -> str:
    """The name of this process as a holder of leases; safe as part of a file name or key."""
    me = describe_process()
    return f"{me.machine}.{me.boot}-{me.pid}-{me.started}"


def is_process_dead(holder: str) -> bool:
    """Whether the process of that name has certainly ended."""
    return _is_dead(holder) is True


def is_process_alive(holder: str) -> bool:
    """Whether the process of that name certainly runs."""
    return _is_dead(holder) is False


def _is_dead(holder: str) -> Optional[bool]:
    try:
        place, pid, started = holder.split("-")
        machine, boot = place.split(".", 1)
        return is_dead(Process(machine, boot, int(pid), int(started)))
    except ValueError:
        return None


class Liveness:
    """Detects holders that show no sign of life, by this process's own clock."""

    def __init__(
        self, clock: Callable[[], float] = elapsed, stale_seconds: float = STALE_SECONDS
    ) -> None:
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._seen: Dict[str, Tuple[object, float]] = {}

    def is_stale(self, key: str, sign: object, read_at: Optional[float] = None) -> bool:
        """Whether the holder of ``key`` has shown this same sign of life for ``stale_seconds``.

        ``sign`` is any value that each renewal changes. Where reading it takes long, ``read_at`` is when that began.
        """
        now = self._clock()
        if key not in self._seen or self._seen[key][0] != sign:
            self._seen[key] = sign, now
            return False
        return (now if read_at is None else read_at) - self._seen[key][1] >= self._stale_seconds


class FileLease:
    """A lease that is a file with the name of its holder. It saves work; nothing may be wrong if two hold it.

    ``with FileLease(path): …`` waits for it. If machines share the directory it is ``renewed`` while it is held, so
    that others see that its holder lives; on one machine the process tells.
    """

    def __init__(
        self, path: Path, *, renewed: bool = False, liveness: Optional[Liveness] = None
    ) -> None:
        self._path = path
        self._renewed = renewed
        self._liveness = liveness or Liveness()
        self._content = b""
        self._released = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def try_acquire(self) -> bool:
        """Take the lease if it is free, or its holder is dead."""
        seen = self._seen()
        if seen is not None:
            holder = self._read().decode(errors="replace").rpartition(".")[0]
            is_stale = self._liveness.is_stale(str(self._path), seen) and not is_process_alive(
                holder
            )
            if not (is_stale or is_process_dead(holder)):
                return False
            if self._seen() == seen:  # no other process took it over meanwhile
                self._unlink()
        content = f"{holder_name()}.{secrets.token_hex(8)}".encode()
        if not create_exclusive(self._path, content):
            return False
        self._content = content
        if self._renewed:
            self._released.clear()
            self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
            self._thread.start()
        return True

    def release(self) -> None:
        """Let others have it; nothing happens if it isn't held."""
        if self._thread is not None:
            self._released.set()
            self._thread.join()
            self._thread = None
        if self._content and self._read() == self._content:
            self._unlink()
        self._content = b""

    def __enter__(self) -> FileLease:
        while not (self._content or self.try_acquire()):
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _seen(self) -> Optional[Tuple[int, int]]:
        """A value that each renewal and each new holder changes; None if the lease is free."""
        with contextlib.suppress(FileNotFoundError):
            found = self._path.lstat()
            return found.st_ino, found.st_mtime_ns
        return None

    def _read(self) -> bytes:
        with contextlib.suppress(OSError):
            stream = open_file(str(self._path))
            if stream is not None:
                with stream:
                    return stream.read(_MAX_BYTES)
        return b""

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._path, follow_symlinks=False)


def remove_stale_leases(directory: Path) -> None:
    """Remove the leases of dead holders from a directory."""
    for path in directory.glob("*.lock"):
        lease = FileLease(path)
        if lease.try_acquire():
            lease.release()
