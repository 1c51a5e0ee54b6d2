"""Showing that one lives: an object that is put again every few seconds, and who watches it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainctl.base.clock import SystemClock
from trainctl.base.exclusive import BEAT_SECONDS, holder_name, known_living
from trainctl.base.json import hex_digest
from trainctl.base.listing import ResolvedSource
from trainctl.errors import TrainctlError
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.objects import Objects
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.checked import checked, record_in
from trainctl.weights.mirror.needs import Need, Watch
from trainctl.weights.mirror.others import SAY_SECONDS, Waiting, WaitsFor
from trainctl.weights.mirror.reception import stopped

LATE_SECONDS = 10.0
"""After so long without a beat others may soon think that this process is dead."""
COLLECTOR_STALE_SECONDS = 90.0
"""A collection is believed to live for longer than its last deletion can be under way: late, connecting and silent."""
_POLL_SECONDS = 0.5
_UNKNOWN = "unknown"
"""Whoever holds what can't be read."""


class Beating:
    """``with Beating(…) as beating``: the object is put, and again until the block ends. It isn't removed then."""

    def __init__(self, objects: Objects, key: str, record: Mapping[str, Any]) -> None:
        self._objects = objects
        self._key = key
        self._record = {**record, "holder": holder_name(), "nonce": secrets.token_hex(8)}
        self._count = 0
        self._elapsed = SystemClock().elapsed
        self._last = 0.0
        self._missed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="beat")

    @property
    def document(self) -> bytes:
        """What is put next."""
        return checked({**self._record, "beat": self._count})

    @property
    def late(self) -> bool:
        """Whether others may once have thought that this process is dead."""
        return self._missed or self._elapsed() - self._last > LATE_SECONDS

    def __enter__(self) -> Beating:
        self._last = self._elapsed()
        self._objects.put(self._key, self.document)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def is_mine(self) -> bool:
        """Whether the object is still there, and this process's."""
        data = self._objects.get(self._key)
        return data is not None and str(self._record["nonce"]).encode() in data

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with contextlib.suppress(TrainctlError):
                if not self.is_mine():
                    self._missed = True
                    return
                self._count += 1
                began = self._elapsed()
                self._objects.put(self._key, self.document)
                self._missed = self._missed or began - self._last > LATE_SECONDS
                self._last = began


def watched(key: str, record: Mapping[str, Any], modified: float = 0.0) -> Need:
    """An object that is put again, as ``Watch`` looks at it."""
    seen = int(hex_digest([record.get("nonce"), record.get("beat")])[:15], 16)
    return Need(Path(key), record, seen, modified)


def held(shelf: Shelf, found: Iterable[str]) -> list[Need]:
    """Those of these announcements or leases that are there, as ``Watch`` looks at them.

    One that can't be read may be a living one's, who puts it again soon: as long as it stays as it is it has shown no sign.
    """
    each = ((key, shelf.objects.get(key)) for key in found)
    return [watched(key, _said(data)) for key, data in each if data is not None]


def _said(data: bytes) -> dict[str, Any]:
    try:
        record = record_in(data)
    except ValueError:
        record = {}
    is_held = isinstance(record.get("holder"), str) and record["holder"]
    return record if is_held else {"holder": _UNKNOWN, "beat": hashlib.sha256(data).hexdigest()}


def await_collections(shelf: Shelf, cancelled: threading.Event, waiting: Waiting) -> None:
    """Until no collection is under way. What a dead one left is removed. Interrupted when cancelled."""
    watch = Watch(SystemClock().elapsed, COLLECTOR_STALE_SECONDS)
    due = time.monotonic() + SAY_SECONDS
    while True:
        under_way = held(shelf, (one.key for one in shelf.objects.list(keys.COLLECTIONS)))
        if not under_way:
            return
        living = watch.busy(under_way)
        shelf.objects.delete([str(one.path) for one in under_way if one not in living])
        if living and time.monotonic() >= due:
            waiting("waits for a collection of the mirror to end")
        if living and cancelled.wait(_POLL_SECONDS):
            raise stopped()


def await_others(
    shelf: Shelf, mine: str, wait: Callable[[float], object], tell: Callable[[str], None]
) -> bool:
    """Until no collection but that announced as ``mine`` is under way; False as soon as one shows that it lives. What a dead one left is removed.

    Who waited for a living one would wait for who waits for him.
    """
    watch = Watch(SystemClock().elapsed, COLLECTOR_STALE_SECONDS)
    first: dict[Path, int] = {}
    told = False
    while True:
        there = (one.key for one in shelf.objects.list(keys.COLLECTIONS))
        others = held(shelf, (key for key in there if key != mine))
        beats = (first.setdefault(one.path, one.touched) != one.touched for one in others)
        if any(beats) or any(known_living(one.writer) for one in others):
            return False
        living = watch.busy(others)
        shelf.objects.delete([str(one.path) for one in others if one not in living])
        if not living:
            return True
        if not told:
            tell("Waiting for a sign of life of another collection.")
            told = True
        wait(_POLL_SECONDS)


@contextlib.contextmanager
def leased(
    shelf: Shelf, resolved: ResolvedSource, cancelled: threading.Event, waits_for: WaitsFor
) -> Iterator[None]:
    """For as long as nobody else who is known to live brings the same source. Interrupted when cancelled."""
    key = keys.lease(resolved)
    _await_lease(shelf, key, cancelled, waits_for)
    beating = Beating(shelf.objects, key, {})
    try:
        with beating:
            yield
    finally:
        if beating.is_mine():
            shelf.objects.delete([key])


def _await_lease(shelf: Shelf, key: str, cancelled: threading.Event, waits_for: WaitsFor) -> None:
    watch = Watch(SystemClock().elapsed)
    claim = checked({"holder": holder_name(), "beat": 0, "nonce": secrets.token_hex(8)})
    while not shelf.objects.put_if_absent(key, claim):
        for lease in held(shelf, [key]):
            if not watch.busy([lease]):
                shelf.objects.delete([key])
                continue
            waits_for(lease.writer)
            if cancelled.wait(_POLL_SECONDS):
                raise stopped()
