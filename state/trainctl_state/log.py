"""State log over any object store; see DESIGN.md for the invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.objects import ObjectStore
from trainctl.errors import AppendConflict, StateError, StorageError
from trainctl.plugin_api.state import LogSlice, StateLog
from trainctl_state.layout import (
    HISTORY,
    LOG,
    SNAPSHOTS,
    CorruptStateObject,
    decode,
    decode_entries,
    encode,
    key_of,
    position_of,
    validate_batch,
)

RETAINED_SNAPSHOTS = 2
"""The newest, and the one before it as a fallback."""
ATTEMPTS = 5
"""Attempts of a reader that is overtaken by pruning."""

PACK_POSITIONS = 500
"""Most positions in a pack, which keeps packs small."""

Batch = list[dict[str, Any]]


class ObjectLog:
    """A log of numbered objects, each created only if absent, and snapshots."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url
        self._archive = HistoryArchive(store, url)
        self._exists_below = 0

    @property
    def url(self) -> str:
        """URL of the log, for people."""
        return self._url

    def read(self, position: int = 0) -> LogSlice:
        """Return entries from ``position``, or the complete state if that was pruned."""
        if position > 0:
            followed = self._follow(position)
            if followed is not None:
                return followed
        whole = self._read_whole()
        return LogSlice(whole.entries, whole.next, whole.snapshot, is_full_state=position > 0)

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        """Append a batch durably; AppendConflict if the position is or was taken."""
        ids = _ids(entries)
        data = encode({"entries": entries})
        self._refuse_hole(position)
        if self._newest_snapshot() > position or not self._create(position, data, ids):
            raise _append_conflict(position)
        self._exists_below = max(self._exists_below, position + 1)
        if self._newest_snapshot() > position and not self._is_packed_as(position, ids):
            raise _append_conflict(position)

    def snapshot(self, position: int, state: JsonObject) -> None:
        """Store a snapshot at ``position``; prune what the previous one covers."""
        if position <= self._newest_snapshot():
            return
        self._refuse_hole(position)
        body = encode({"position": position, "fold": state})
        self._store.put_if_absent(key_of(SNAPSHOTS, position), body)
        self._prune(self._snapshots())

    def _prune(self, snapshots: Sequence[int]) -> None:
        """Move entries covered by the older retained snapshot to the history.

        It is idempotent, and completes interrupted pruning.
        """
        if len(snapshots) < RETAINED_SNAPSHOTS:
            return
        before = self._archive.last()
        if before is not None and self._store.get(key_of(LOG, before.first)):
            self._empty(before)
        for pack in self._archive.extend(snapshots[-RETAINED_SNAPSHOTS], self._batch):
            self._empty(pack)
        for position in snapshots[:-RETAINED_SNAPSHOTS]:
            self._store.delete([key_of(SNAPSHOTS, position)])

    def _empty(self, pack: HistoryPack) -> None:
        # The first one last: while it is not empty, the rest may not be either.
        for position in reversed(range(pack.first, pack.next)):
            self._store.put(key_of(LOG, position), b"", durable=False)

    def replay(self) -> Iterator[JsonObject]:
        """Yield every entry ever appended, the oldest first."""
        for batch in self._all_batches():
            yield from batch

    def _all_batches(self) -> Iterator[Batch]:
        """Yield all batches, from the history and then the log."""
        end, position = self._end_of_listing(0), 0
        while position < end:
            if batch := self._batch_or_pruned(position):
                yield batch
                position += 1
            elif pack := self._archive.covering(position):
                yield from pack.batches[position - pack.first :]
                position = pack.next
            else:
                raise self._uncovered(position)

    def _follow(self, position: int) -> LogSlice | None:
        """Read entries by key until one is missing; None if one was pruned."""
        entries: list[JsonObject] = []
        while (data := self._store.get(key_of(LOG, position))) is not None:
            if not data:
                return None
            entries += decode_entries(key_of(LOG, position), data, self._url)
            position += 1
        self._exists_below = max(self._exists_below, position)
        return LogSlice(tuple(entries), position)

    def _read_whole(self) -> LogSlice:
        for _ in range(ATTEMPTS):
            start, fold = self._newest_fold()
            if fold is None and start == 0 and self._archive.firsts():
                return self._slice(list(self._all_batches()), 0, None)
            end = self._end_of_listing(start)
            batches = [self._batch_or_pruned(position) for position in range(start, end)]
            if all(batches):
                return self._slice(batches, start, fold)
        raise self._uncovered(start)

    def _slice(
        self, batches: Sequence[Batch | None], start: int, fold: JsonObject | None
    ) -> LogSlice:
        entries = tuple(entry for batch in batches for entry in batch or ())
        end = start + len(batches)
        self._exists_below = max(self._exists_below, end)
        return LogSlice(entries, end, fold)

    def _newest_fold(self) -> tuple[int, JsonObject | None]:
        """Return the newest readable snapshot, skipping corrupt ones."""
        for position in reversed(self._snapshots()):
            key = key_of(SNAPSHOTS, position)
            data = self._store.get(key)
            if data is None:
                continue
            try:
                fold = decode(key, data, self._url).get("fold")
            except CorruptStateObject:
                continue
            if isinstance(fold, dict):
                return position, fold
        return 0, None

    def _end_of_listing(self, start: int) -> int:
        after = key_of(LOG, start - 1) if start else ""
        positions = [position_of(key) for key, *_ in self._store.list(LOG, after)]
        return max((position + 1 for position in positions if position is not None), default=start)

    def _batch_or_pruned(self, position: int) -> Batch | None:
        """Return the batch of a position; None if pruned, CorruptStateObject if missing."""
        key = key_of(LOG, position)
        data = self._store.get(key)
        if data is None:
            raise CorruptStateObject(key, self._url, "is missing, and later batches exist")
        return decode_entries(key, data, self._url) if data else None

    def _batch(self, position: int) -> Batch:
        batch = self._batch_or_pruned(position) or self._archive.batch_at(position)
        if batch is None:
            raise self._uncovered(position)
        return batch

    def _uncovered(self, position: int) -> CorruptStateObject:
        return CorruptStateObject(
            key_of(LOG, position), self._url, "is empty, and the history doesn't contain it"
        )

    def _create(self, position: int, data: bytes, ids: list[str]) -> bool:
        """Return whether this process created the object, even if the response was lost."""
        key = key_of(LOG, position)
        try:
            if self._store.put_if_absent(key, data):
                return True
        except (StateError, StorageError):
            stored = self._store.get(key)
            if stored is None:
                raise
        else:
            stored = self._store.get(key)
        return (
            stored is not None
            and stored != b""
            and _ids(decode_entries(key, stored, self._url)) == ids
        )

    def _is_packed_as(self, position: int, ids: list[str]) -> bool:
        """Return whether a concurrent snapshot includes this append."""
        packed = self._archive.batch_at(position)
        if packed is None or _ids(packed) == ids:
            return True
        self._store.put(key_of(LOG, position), b"", durable=False)
        return False

    def _refuse_hole(self, position: int) -> None:
        if position > self._exists_below and self._store.get(key_of(LOG, position - 1)) is None:
            raise StateError(
                f"the log has no entries before position {position}",
                "Read the log, then append at its end.",
            )

    def _snapshots(self) -> list[int]:
        positions = (position_of(key) for key, *_ in self._store.list(SNAPSHOTS))
        return [position for position in positions if position is not None]

    def _newest_snapshot(self) -> int:
        return max(self._snapshots(), default=0)


def _ids(entries: Sequence[JsonObject]) -> list[str]:
    ids = [str(entry.get("id") or "") for entry in entries]
    if not ids or "" in ids:
        raise StateError("every entry of an append needs an id", "Nothing was written.")
    return ids


def _append_conflict(position: int) -> AppendConflict:
    return AppendConflict(
        f"another command wrote to the state first (position {position})", "Run the command again."
    )


@dataclass(frozen=True, slots=True)
class HistoryPack:
    """The batches of positions from ``first``."""

    first: int
    batches: tuple[Batch, ...]

    @property
    def next(self) -> int:
        """The position after its last one."""
        return self.first + len(self.batches)


class HistoryArchive:
    """The packs of one log."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url

    def firsts(self) -> list[int]:
        """Return the first position of each pack, ascending."""
        positions = (position_of(key) for key, *_ in self._store.list(HISTORY))
        return [position for position in positions if position is not None]

    def last(self) -> HistoryPack | None:
        """Return the newest pack."""
        firsts = self.firsts()
        return self.pack(firsts[-1]) if firsts else None

    def pack(self, first: int) -> HistoryPack:
        """Read the pack that begins at a position; CorruptStateObject if it is corrupt."""
        key = key_of(HISTORY, first)
        data = self._store.get(key)
        if data is None:
            raise CorruptStateObject(key, self._url, "is missing")
        batches = decode(key, data, self._url).get("batches")
        if not isinstance(batches, list) or not batches:
            raise CorruptStateObject(key, self._url, "contains no batches")
        return HistoryPack(first, tuple(validate_batch(key, batch, self._url) for batch in batches))

    def covering(self, position: int) -> HistoryPack | None:
        """Return the pack that holds a position; None if it isn't packed."""
        first = max((first for first in self.firsts() if first <= position), default=None)
        pack = None if first is None else self.pack(first)
        return pack if pack is not None and position < pack.next else None

    def batch_at(self, position: int) -> Batch | None:
        """Return the batch of a packed position; None if it isn't packed."""
        pack = self.covering(position)
        return None if pack is None else pack.batches[position - pack.first]

    def extend(self, end: int, load: Callable[[int], Batch]) -> list[HistoryPack]:
        """Pack all positions before ``end``; return the new packs."""
        last = self.last()
        position = last.next if last else 0
        packs = []
        while position < end:
            upto = min(end, position + PACK_POSITIONS)
            pack = HistoryPack(position, tuple(load(number) for number in range(position, upto)))
            body = {"first": pack.first, "next": pack.next, "batches": pack.batches}
            if not self._store.put_if_absent(key_of(HISTORY, position), encode(body)):
                pack = self.pack(position)
            packs.append(pack)
            position = pack.next
        return packs


_: type[StateLog] = ObjectLog
