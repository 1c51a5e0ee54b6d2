"""A state log in a list: the reference for what a state log means, made of nothing that another one is made of."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence

from trainctl.base.json import JsonObject
from trainctl.errors import AppendConflict, StateError
from trainctl.plugin_api.state import LogSlice, StateLog


class MemoryLog:
    """Every batch in its place, and the newest snapshot. Reading from a position that a snapshot covers gives the whole state."""

    def __init__(self, url: str = "memory:reference") -> None:
        self._url = url
        self._lock = threading.Lock()
        self._batches: list[list[JsonObject]] = []
        self._snapshot: tuple[int, JsonObject] | None = None

    @property
    def url(self) -> str:
        """Where the log is, for people."""
        return self._url

    def read(self, position: int = 0) -> LogSlice:
        """Everything from the position on."""
        with self._lock:
            covered, fold = self._snapshot or (0, None)
            whole = position < covered
            start = covered if whole else position
            entries = copy.deepcopy([entry for batch in self._batches[start:] for entry in batch])
            end = max(start, len(self._batches))
            return LogSlice(
                tuple(entries), end, copy.deepcopy(fold) if whole else None, whole and position > 0
            )

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        """Add one batch at the position."""
        if not entries or not all(entry.get("id") for entry in entries):
            raise StateError("every entry of an append needs an id")
        with self._lock:
            if position > len(self._batches):
                raise StateError(f"the log has no entries before position {position}")
            if position < len(self._batches):
                there = [entry["id"] for entry in self._batches[position]]
                if there == [entry["id"] for entry in entries]:
                    return
                raise AppendConflict(f"position {position} is taken")
            self._batches.append(copy.deepcopy(list(entries)))

    def snapshot(self, position: int, state: JsonObject) -> None:
        """Keep the state of everything before the position."""
        with self._lock:
            if position > len(self._batches):
                raise StateError(f"the log has no entries before position {position}")
            if self._snapshot is None or position > self._snapshot[0]:
                self._snapshot = position, copy.deepcopy(state)

    def replay(self) -> Iterator[JsonObject]:
        """Every entry ever appended."""
        with self._lock:
            return iter(copy.deepcopy([entry for batch in self._batches for entry in batch]))


_: type[StateLog] = MemoryLog
