"""State log over any object store; see DESIGN.md for the invariants."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.objects import ObjectStore
from trainctl.errors import AppendConflict, StateError, StorageError
from trainctl.plugin_api.state import LogSlice, StateLog

VERSION = 1
LOG, SNAPSHOTS, HISTORY = "log", "snapshots", "history"
TAIL, PROBE = "tail.json", "probe.json"
Batch = list[dict[str, Any]]
_NUMBERED = compile_lazily(r"[a-z]+/(\d{12})\.json")


class CorruptStateObject(StateError):
    """An object is missing or corrupt."""

    default_code = "state-corrupt"

    def __init__(self, key: str, url: str, problem: str) -> None:
        super().__init__(
            f"the state is corrupt: {key} {problem}",
            f"Restore this object of {url}, or the complete state, from a backup. Nothing was changed.",
        )

    def __copy__(self) -> CorruptStateObject:
        return self  # copy.copy would call __init__ with the summary


def key_of(kind: str, position: int) -> str:
    """Return the key of a position's object."""
    return f"{kind}/{position:012d}.json"


def _positions(store: ObjectStore, kind: str, after: str = "") -> list[int]:
    """Return the positions that have an object of a kind, ascending."""
    matches = (_NUMBERED.fullmatch(key) for key, *_ in store.list(kind, after))
    return sorted(int(match[1]) for match in matches if match)


def encode(body: Mapping[str, Any]) -> bytes:
    """Encode an object as ASCII JSON, for any file name; StateError if impossible."""
    try:
        text = json.dumps({"version": VERSION, **body}, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateError(
            f"cannot write an entry to the state: {error}", "Nothing was written."
        ) from error
    return text.encode("ascii")


def decode(key: str, data: bytes, url: str) -> dict[str, Any]:
    """Decode an object; CorruptStateObject, or StateError for a newer format."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptStateObject(key, url, "is truncated or not JSON") from None
    version = body.get("version") if isinstance(body, dict) else None
    if not isinstance(version, int) or version < 1:
        raise CorruptStateObject(key, url, "has no format version")
    if version > VERSION:
        raise StateError(
            f"the state was written by a newer trainctl: {key} has format {version}, this one reads {VERSION}",
            f"Install the newer trainctl to use {url}. Nothing was changed.",
            code="newer-format",
        )
    checked: dict[str, Any] = body
    return checked


def validate_batch(key: str, batch: object, url: str) -> list[dict[str, Any]]:
    """Return a valid batch of entries; CorruptStateObject otherwise."""
    if not isinstance(batch, list) or not batch:
        raise CorruptStateObject(key, url, "contains no entries")
    if not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in batch):
        raise CorruptStateObject(key, url, "contains an entry without an id")
    return batch


def batch_ids(entries: Sequence[JsonObject]) -> list[str]:
    """Return the ids of a batch; StateError if one has none."""
    ids = [str(entry.get("id") or "") for entry in entries]
    if not ids or "" in ids:
        raise StateError("every entry of an append needs an id", "Nothing was written.")
    return ids


RETAINED_SNAPSHOTS = 2
"""The newest, and the one before it as a fallback."""
ATTEMPTS = 5
"""Attempts of a reader that is overtaken by pruning."""
READ_AT_ONCE = 16
"""Positions read at once, where that hides latency."""
PACK_POSITIONS = 500
"""Most positions in a pack, which keeps packs small."""


class ObjectLog:
    """A log of numbered objects, each created only if absent, and snapshots."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url
        self._archive = HistoryArchive(store, url)
        self._exists_below = 0
        self._most_at_once = 1

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
        ids = batch_ids(entries)
        data = encode({"entries": entries})
        self._refuse_hole(position)
        if self._newest_snapshot() > position:
            if self._stored_ids(position) != ids:
                raise _append_conflict(position)
            return
        self._create(position, data, ids)
        if self._newest_snapshot() > position:
            packed = self._archive.batch_at(position)
            if packed is not None and batch_ids(packed) != ids:
                # a concurrent snapshot packed another batch
                self._store.put(key_of(LOG, position), b"", durable=False)
                raise _append_conflict(position)

    def snapshot(self, position: int, state: JsonObject) -> None:
        """Store a snapshot at ``position``; prune what the previous one covers."""
        snapshots = self._snapshots()
        if position <= max(snapshots, default=0):
            return
        self._refuse_hole(position)
        body = encode({"position": position, "fold": state})
        self._store.put_if_absent(key_of(SNAPSHOTS, position), body)
        self._prune(sorted({*snapshots, position}))

    def _prune(self, snapshots: Sequence[int]) -> None:
        """Move entries covered by the older retained snapshot to the history.

        It is idempotent, and completes interrupted pruning.
        """
        if len(snapshots) < RETAINED_SNAPSHOTS:
            return
        before = self._archive.last()
        if before is not None and self._store.get(key_of(LOG, before.first)):
            self._empty(before)
        for pack in self._archive.extend(snapshots[-RETAINED_SNAPSHOTS], self._batches):
            self._empty(pack)
        self._drop_old(snapshots)

    def _drop_old(self, snapshots: Sequence[int]) -> None:
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
        position = 0
        for pack in self._archive.packs():
            yield from pack.batches
            position = pack.next
        end = self._end_of_listing(position)
        while position < end:
            upto = min(end, position + READ_AT_ONCE)
            yield from self._batches(range(position, upto))
            position = upto

    def _follow(self, position: int) -> LogSlice | None:
        """Read entries by key until one is missing; None if one was pruned."""
        entries: list[JsonObject] = []
        window = 1
        while True:
            for data in self._load(range(position, position + window)):
                if data is None:
                    self._exists_below = max(self._exists_below, position)
                    return LogSlice(tuple(entries), position)
                if not data:
                    return None
                entries += self._decode(position, data)
                position += 1
            window = min(2 * window, self._most_at_once)

    def _read_whole(self) -> LogSlice:
        for _ in range(ATTEMPTS):
            start, fold = self._newest_fold()
            if fold is None and self._archive.firsts():
                return self._slice(list(self._all_batches()), 0, None)
            batches = self._unpruned(range(start, self._end_of_listing(start)))
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
            fold = self._fold_at(position)
            if fold is not None:
                return position, fold
        return 0, None

    def _fold_at(self, position: int) -> JsonObject | None:
        """Return the state of a snapshot; None if it is missing or corrupt."""
        key = key_of(SNAPSHOTS, position)
        data = self._store.get(key)
        try:
            fold = decode(key, data, self._url).get("fold") if data is not None else None
        except CorruptStateObject:
            return None
        return fold if isinstance(fold, dict) else None

    def _end_of_listing(self, start: int) -> int:
        after = key_of(LOG, start - 1) if start else ""
        return max((last + 1 for last in _positions(self._store, LOG, after)), default=start)

    def _load(self, positions: range) -> Iterator[bytes | None]:
        """Yield the objects of positions, None for missing ones."""
        return (self._store.get(key_of(LOG, position)) for position in positions)

    def _decode(self, position: int, data: bytes) -> Batch:
        key = key_of(LOG, position)
        return validate_batch(key, decode(key, data, self._url).get("entries"), self._url)

    def _unpruned(self, positions: range) -> list[Batch | None]:
        """Return batches, None for pruned ones; CorruptStateObject if one is missing."""
        batches: list[Batch | None] = []
        for position, data in zip(positions, self._load(positions), strict=True):
            if data is None:
                problem = "is missing, and later batches exist"
                raise CorruptStateObject(key_of(LOG, position), self._url, problem)
            batches.append(self._decode(position, data) if data else None)
        return batches

    def _batches(self, positions: range) -> list[Batch]:
        """Return batches of the log or, if pruned, of the history."""
        batches: list[Batch] = []
        for position, batch in zip(positions, self._unpruned(positions), strict=True):
            found = batch or self._archive.batch_at(position)
            if found is None:
                raise self._uncovered(position)
            batches.append(found)
        return batches

    def _uncovered(self, position: int) -> CorruptStateObject:
        return CorruptStateObject(
            key_of(LOG, position), self._url, "is empty, and the history doesn't contain it"
        )

    def _create(self, position: int, data: bytes, ids: list[str]) -> None:
        """Create the object of a position, recognizing this batch if the response was lost.

        AppendConflict if another batch has the position.
        """
        try:
            created = self._store.put_if_absent(key_of(LOG, position), data)
            stored = ids if created else self._stored_ids(position)
        except (StateError, StorageError):
            stored = self._stored_ids(position)
            if stored is None:
                raise
        if stored is None:
            raise StateError(
                f"the server neither created nor had {key_of(LOG, position)} of {self._url}",
                "Run the command again: it resumes.",
            )
        if stored != ids:
            raise _append_conflict(position)
        self._exists_below = max(self._exists_below, position + 1)

    def _stored_ids(self, position: int) -> list[str] | None:
        """Return the ids at a position, from the history if pruned; None if not found."""
        data = self._store.get(key_of(LOG, position))
        batch = self._decode(position, data) if data else self._archive.batch_at(position)
        return None if batch is None else batch_ids(batch)

    def _refuse_hole(self, position: int) -> None:
        if position > self._exists_below and self._store.get(key_of(LOG, position - 1)) is None:
            raise StateError(
                f"the log has no entries before position {position}",
                "Read the log, then append at its end.",
            )

    def _snapshots(self) -> list[int]:
        return _positions(self._store, SNAPSHOTS)

    def _newest_snapshot(self) -> int:
        return max(self._snapshots(), default=0)


def _append_conflict(position: int) -> AppendConflict:
    return AppendConflict(
        f"another command wrote to the state first (position {position})", "Run the command again."
    )


_: type[StateLog] = ObjectLog


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
        return _positions(self._store, HISTORY)

    def packs(self) -> Iterator[HistoryPack]:
        """Yield all packs, the oldest first."""
        return map(self.pack, self.firsts())

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

    def batch_at(self, position: int) -> Batch | None:
        """Return the batch of a packed position; None if it isn't packed."""
        first = max((first for first in self.firsts() if first <= position), default=None)
        pack = None if first is None else self.pack(first)
        return pack.batches[position - pack.first] if pack and position < pack.next else None

    def extend(
        self, end: int, load: Callable[[range], list[Batch]], *, at_least: int = 1
    ) -> list[HistoryPack]:
        """Pack all positions before ``end`` if they are ``at_least`` so many; return the new packs."""
        last = self.last() if end >= at_least else None
        position = last.next if last else 0
        packs: list[HistoryPack] = []
        if end - position < at_least:
            return packs
        while position < end:
            upto = min(end, position + PACK_POSITIONS)
            pack = HistoryPack(position, tuple(load(range(position, upto))))
            body = {"first": pack.first, "next": pack.next, "batches": pack.batches}
            if not self._store.put_if_absent(key_of(HISTORY, position), encode(body)):
                pack = self.pack(position)
            packs.append(pack)
            position = pack.next
        return packs
