"""Lanes: who waits for the same thing under one ROOT, in order. A record whose holder is dead counts for nothing.

    ROOT/queue/<lane>/<order>-<run key>     an empty file

``order`` sorts by priority, the highest first, then by when the first run of the same apply was made on this node, then by the
plan. The holder of a record also holds a claim, by which others see that it lives, and for whose release the one behind it waits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import List, Optional

from trainctl.base.files import PRIVATE_FILE, make_directory
from trainctl.node.runs.record import Run
from trainctl.node.turns.claims import Claims, is_held

_MOST_PRIORITY = 10**9
_ORDER_LENGTH = len("0000000000-00000000000000000000-")


class Lane:
    """One thing that is waited for under a ROOT."""

    def __init__(self, root: Path, name: str) -> None:
        self._name = f"{root}\0{name}"
        self.directory = root / "queue" / name

    def records(self) -> List[str]:
        """All of them, in order."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.directory)  # noqa: PTH208 - many look often: no paths are made
            return sorted(name for name in names if len(name) > _ORDER_LENGTH)
        return []

    def ahead_of(self, key: str) -> int:
        """How many records stand before a run's."""
        records = self.records()
        return next((at for at, one in enumerate(records) if key_of(one) == key), len(records))

    def claim(self, key: str) -> str:
        """The claim that the holder of a run's record holds."""
        digest = hashlib.sha256(f"{self._name}\0{key}".encode()).hexdigest()
        return f"wait/{digest[:32]}"


class Place:
    """One run's place in a lane, from entering to leaving. ``priority`` holds unless the run is given another.

    ``date`` is what it is ordered by then, in Unix nanoseconds; by default as this node has it.
    """

    def __init__(self, lane: Lane, run: Run, priority: int, date: Optional[int] = None) -> None:
        self._lane = lane
        self._run = run
        self._priority = priority
        self._created = run.queued_ns if date is None else date
        self._claims = Claims()
        self._claims.take(lane.claim(run.key))

    def behind(self) -> Optional[str]:
        """The claim of whoever stands directly before this run; None if it is first. Its record is made, or put in order."""
        priority = int(self._run.order.get("priority", self._priority))
        mine = record_name(priority, self._created, self._run.key)
        records = self._lane.records()
        own = [one for one in records if key_of(one) == self._run.key]
        if mine not in own:
            make_directory(self._lane.directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            os.close(os.open(self._lane.directory / mine, flags, PRIVATE_FILE))
        for old in own:
            if old != mine:
                self._remove(old)
        for one in reversed([one for one in records if one < mine and one not in own]):
            claim = self._lane.claim(key_of(one))
            if is_held(claim):
                return claim
            self._remove(one)
        return None

    def leave(self) -> None:
        """Make room."""
        for one in self._lane.records():
            if key_of(one) == self._run.key:
                self._remove(one)
        self._claims.release()

    def _remove(self, record: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._lane.directory / record).unlink()


def record_name(priority: int, created_ns: int, key: str) -> str:
    """A run's record: it sorts before those of lower priority, then before those made later."""
    bounded = min(max(priority, -_MOST_PRIORITY), _MOST_PRIORITY)
    return f"{_MOST_PRIORITY - bounded:010d}-{created_ns:020d}-{key}"


def key_of(record: str) -> str:
    """The run of a record."""
    return record[_ORDER_LENGTH:]
