"""The fold of a log as far as this process has read it, and its snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from trainctl.base.clock import Clock
from trainctl.errors import StateError
from trainctl.ledger.codec import state_from_json, state_to_json
from trainctl.ledger.entries import Entry, entry_id, from_json
from trainctl.ledger.fold import Fold
from trainctl.ledger.state import State
from trainctl.spi.state import StateLog

SNAPSHOT_APPENDS = 200
"""A snapshot is due after so many appends, and half as many entries as the state has items."""
REST_ENTRIES = 500
"""When a command that appended comes to an end, fewer entries are left to whoever reads next than a snapshot costs."""


class Head:
    """Where this process stands in a log. For one thread at a time: the one that leads an append."""

    def __init__(self, log: StateLog, clock: Clock) -> None:
        self.log = log
        self.fold = Fold()
        self.known = State()
        """The newest whole state, for threads that don't lead."""
        self.looked_at = 0.0
        """When the newest read began, on the clock that counts sleep."""
        self._clock = clock
        self._snapshot_at = 0

    def catch_up(self) -> set[str]:
        """Fold what was appended since the last look; the ids of it."""
        began = self._clock.elapsed()
        found = self.log.read(self.fold.position)
        if found.snapshot is not None or found.whole:
            start = State() if found.snapshot is None else state_from_json(found.snapshot)
            self.fold = Fold(start)
            self._snapshot_at = start.position
        entries = [from_json(raw) for raw in found.entries]
        self._apply(entries, found.next)
        self.looked_at = began
        return {entry_id(entry) for entry in entries}

    def add(self, entries: Iterable[Entry]) -> None:
        """Fold what this process has just appended."""
        self._apply(entries, self.fold.position + 1)

    def publish(self) -> None:
        """Let every thread see how the fold is now."""
        self.known = self.fold.state()

    def snapshot_if_due(self) -> None:
        """Take a snapshot when enough was appended; it is only a cache, so one that fails is tried again later."""
        if self.fold.position - self._snapshot_at >= SNAPSHOT_APPENDS:
            self._snapshot()

    def rest(self) -> None:
        """Take a snapshot where reading what was appended since the last one takes long, however few appends that were."""
        if self.fold.entries >= REST_ENTRIES:
            self._snapshot()

    def _snapshot(self) -> None:
        fold = self.fold
        if 2 * fold.entries >= len(fold.resources) + len(fold.versions):
            with suppress(StateError):
                self.log.snapshot(fold.position, state_to_json(fold.state()))
            self._snapshot_at, fold.entries = fold.position, 0

    def _apply(self, entries: Iterable[Entry], position: int) -> None:
        for entry in entries:
            self.fold.apply(entry)
        self.fold.move_to(position)
