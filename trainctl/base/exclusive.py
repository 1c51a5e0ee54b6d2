"""Who is doing it now: leases as files, made by link, without ``flock``. They save work; nothing rests on them.

A lease of a holder that may live on another machine counts as left when the watcher's own clock has seen it untouched
for long enough.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainctl.base.below import open_file
from trainctl.base.lease import RENEW_SECONDS, known_alive
from trainctl.base.lease import STALE_SECONDS as STALE_SECONDS
from trainctl.base.lease import holder_name as holder_name
from trainctl.base.lease import known_dead as known_dead

BEAT_SECONDS = RENEW_SECONDS
_POLL_SECONDS = 0.1
known_living = known_alive
_MOST_CHARACTERS = 1000
"""Of what a lease says."""


def process_of(holder: str) -> str:
    """The process id in a holder's name."""
    return holder.partition("-")[2].partition("-")[0] or "?"


def _nobody(holder: str) -> None:
    """For those who wait without a word."""


def remove_if_dead(path: Path) -> None:
    """Remove a lease whose holder is certainly no more."""
    seen = _touched(path)
    if known_dead(_holder_of(_owner(path))):
        _remove_if(path, seen)


@contextlib.contextmanager
def lease(
    path: Path,
    cancelled: threading.Event,
    done: Callable[[], bool] = lambda: False,
    stale_seconds: float = STALE_SECONDS,
    waits_for: Callable[[str], None] = _nobody,
) -> Iterator[bool]:
    """Wait for the lease at the path and hold it; True when held. ``waits_for`` is told the holder's name meanwhile, again and again.

    False as soon as ``done`` says that there is nothing left to do, or ``cancelled`` is set.
    """
    mine = path.with_name(f"tmp.{holder_name()}.{secrets.token_hex(4)}")
    held = _acquire(path, mine, cancelled, done, stale_seconds, waits_for)
    if not held:
        yield False
        return
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, mine.name, stop), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        stop.set()
        beat.join()
        if _owner(path) == mine.name:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def shown(path: Path) -> Iterator[None]:
    """Touch a file every few seconds, so that who watches it sees that this process goes on."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _acquire(
    path: Path,
    mine: Path,
    cancelled: threading.Event,
    done: Callable[[], bool],
    stale_seconds: float,
    waits_for: Callable[[str], None],
) -> bool:
    seen: tuple[int, int] | None = None
    since = time.monotonic()
    while not (cancelled.is_set() or done()):
        if _create(path, mine):
            return True
        now = _touched(path)
        if now != seen:
            seen, since = now, time.monotonic()
        holder = _holder_of(_owner(path))
        if time.monotonic() - since > stale_seconds or known_dead(holder):
            _remove_if(path, now)
            continue
        if holder:
            waits_for(holder)
        cancelled.wait(_POLL_SECONDS)
    return False


def _create(path: Path, mine: Path) -> bool:
    """A link appears whole or not at all, so nobody ever reads a lease without its holder."""
    with mine.open("x") as stream:
        stream.write(mine.name)
    try:
        os.link(mine, path)
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def _owner(path: Path) -> str:
    try:
        descriptor = open_file(path)
    except OSError:
        return ""
    if descriptor is None:
        return ""
    with os.fdopen(descriptor, errors="replace") as stream:
        return stream.read(_MOST_CHARACTERS)


def _holder_of(owner: str) -> str:
    return owner[len("tmp.") :].rpartition(".")[0]


def _touched(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _remove_if(path: Path, seen: tuple[int, int] | None) -> None:
    """Two watchers may both get here; the one that comes late finds another inode and leaves it."""
    if seen is not None and _touched(path) == seen:
        path.unlink(missing_ok=True)


def _beat(path: Path, owner: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        with contextlib.suppress(OSError):
            if _owner(path) == owner:
                os.utime(path, follow_symlinks=False)
