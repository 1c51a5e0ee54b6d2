"""A state backend: a log that refuses an append where someone else already appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainctl.base.json import JsonObject


@dataclass(frozen=True, slots=True)
class LogSlice:
    """What lies at and after a position.

    ``snapshot`` is set when the log was read from the start and a fold of its head exists; the entries then
    begin after it. ``next`` is the position at which the next append belongs. ``whole`` says that the slice begins
    at the start although a later position was asked for, because that one was pruned: forget what was folded before.
    """

    entries: tuple[JsonObject, ...]
    next: int
    snapshot: JsonObject | None = None
    whole: bool = False


class StateLog(Protocol):
    """An append-only log of JSON objects, in batches: one append is one position, whatever it holds.

    Positions count from 0. Everything may raise StateError; every method may be called from many threads.
    """

    @property
    def url(self) -> str:
        """Where the log is, for people."""
        ...

    def read(self, position: int = 0) -> LogSlice:
        """Everything from the position on; from 0, starting at the newest snapshot."""
        ...

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        """Add one batch at the position, durably. AppendConflict if something is there already or was.

        Every entry has an ``id`` (a UUID), by which a write whose answer was lost is recognised as one's own.
        """
        ...

    def snapshot(self, position: int, fold: JsonObject) -> None:
        """Keep the fold of everything before the position, so that readers may start there; prune what it covers."""
        ...

    def replay(self) -> Iterator[JsonObject]:
        """Every entry ever appended, the oldest first, whatever snapshots cover."""
        ...
