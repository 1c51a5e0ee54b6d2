"""Leases: liveness of their holders, and leases in files.

A holder renews its lease every ``RENEW_SECONDS``. Others may take it over if the holder's process has certainly
ended, or if they observed no renewal for ``STALE_SECONDS``. Clocks of different machines are never compared.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Optional, Tuple

from trainctl.base.clock import elapsed
from trainctl.base.system.processes import Process, describe_process, is_dead

RENEW_SECONDS = 5.0
STALE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_MAX_BYTES = 1000


def holder_name() -> str:
    """Return this process's name as a lease holder; safe in file names and keys."""
    me = describe_process()
    return f"{me.machine}.{me.boot}-{me.pid}-{me.started}"


def is_process_dead(holder: str) -> bool:
    """Return whether the holder's process has certainly ended."""
    return _is_dead(holder) is True


def is_process_alive(holder: str) -> bool:
    """Return whether the holder's process is certainly running."""
    return _is_dead(holder) is False


def _is_dead(holder: str) -> Optional[bool]:
    try:
        host, pid, started = holder.split("-")
        machine, boot = host.split(".", 1)
        return is_dead(Process(machine, boot, int(pid), int(started)))
    except ValueError:
        return None


class Liveness:
    """Detects holders that stopped renewing, by this process's clock."""

    def __init__(
        self, clock: Callable[[], float] = elapsed, stale_seconds: float = STALE_SECONDS
    ) -> None:
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._tokens: Dict[str, Tuple[object, float]] = {}

    def is_stale(self, key: str, token: object, read_at: Optional[float] = None) -> bool:
        """Return whether ``token``, changed by renewals, is too old.

        If reading the token takes long, ``read_at`` is when that began.
        """
        now = self._clock()
        if key not in self._tokens or self._tokens[key][0] != token:
            self._tokens[key] = token, now
            return False
        return (now if read_at is None else read_at) - self._tokens[key][1] >= self._stale_seconds


class FileLease:
    """A lease in a file that avoids duplicate work; two holders must do no harm.

    ``with FileLease(path): …`` waits for it. If several machines share the directory, it must be ``renewed`` while
    held; on one machine the holder's process is checked.
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
        """Acquire the lease if it is free or its holder is dead."""
        from trainctl.base.filesystem.files import create_exclusive

        token = self._renewal_token()
        if token is not None:
            holder = self._read().decode(errors="replace").rpartition(".")[0]
            is_stale = self._liveness.is_stale(str(self._path), token) and not is_process_alive(
                holder
            )
            if not (is_stale or is_process_dead(holder)):
                return False
            if self._renewal_token() == token:  # no other process took it over meanwhile
                self._unlink()
        content = f"{holder_name()}.{os.urandom(8).hex()}".encode()
        if not create_exclusive(self._path, content):
            return False
        self._content = content
        if self._renewed:
            self._released.clear()
            self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
            self._thread.start()
        return True

    def release(self) -> None:
        """Release the lease, if it is held."""
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

    def _renewal_token(self) -> Optional[Tuple[int, int]]:
        """Return a value that renewals and new holders change; None if free."""
        with contextlib.suppress(FileNotFoundError):
            status = self._path.lstat()
            return status.st_ino, status.st_mtime_ns
        return None

    def _read(self) -> bytes:
        from trainctl.base.filesystem.files import open_file

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
