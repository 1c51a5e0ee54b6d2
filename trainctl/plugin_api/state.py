"""Interface of state backends: an append-only log with optimistic locking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass

FIRST_BATCH = "log/000000000000.json"
"""Object that every state in a directory or bucket has; states are listed by it."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Entries of the log from a position on.

    ``next`` is the position of the next append. ``snapshot`` is set when reading from the start if there is one; the
    entries follow it. ``is_full_state``: the requested position was pruned, so the slice starts at the beginning.
    """

    entries: tuple[JsonObject, ...]
    next: int
    snapshot: JsonObject | None = None
    is_full_state: bool = False


class StateLog(Protocol):
    """An append-only log of batches of JSON objects, with positions from 0 on.

    Many threads and processes use it at once; nothing needs closing. Failures are StateError, after the log's own retries.
    """

    @property
    def url(self) -> str:
        """Location of the log, for messages."""
        ...

    def read(self, position: int = 0) -> LogSlice:
        """Read from the position on; from 0, start at the newest snapshot.

        It includes every batch whose ``append`` had returned, in any process. Entries are returned as they were appended.
        """
        ...

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        """Append a batch durably and atomically; raise AppendConflict if the position is or was taken.

        Entries have an ``id`` (UUID), by which the log recognises the batch: after any other error it may be there or
        not, and the same call again settles that, however far others have appended and pruned.
        """
        ...

    def snapshot(self, position: int, state: JsonObject) -> None:
        """Store the state before the position and prune covered entries.

        A kill or an error in between loses nothing. May be repeated, and concurrent ones may differ in position.
        """
        ...

    def replay(self) -> Iterator[JsonObject]:
        """Yield all entries ever appended, oldest first, including pruned ones."""
        ...
