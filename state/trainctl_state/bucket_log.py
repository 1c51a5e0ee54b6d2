"""State log in a bucket: few requests, and proof that the server can decide between writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

from trainctl.base.json import JsonObject
from trainctl.base.objects import ObjectStore
from trainctl.errors import StateError, StorageError
from trainctl.plugin_api.state import LogSlice
from trainctl_state.log import (
    LOG,
    PROBE,
    READ_AT_ONCE,
    TAIL,
    Batch,
    ObjectLog,
    batch_ids,
    decode,
    encode,
    key_of,
    validate_batch,
)

TAIL_EVERY = 4
"""Positions between two writes of the tail, which bounds the requests of a reader."""
TAIL_BYTES = 2 * 2**20
"""Most bytes of a tail; beyond, readers load the entries until the next snapshot."""
KNOWN_BYTES = 12 * TAIL_BYTES
"""Most bytes of entries in memory, from which packs are made."""
PACK_AFTER = 100
"""Fewest positions that are worth a pack of the history."""


class BucketLog(ObjectLog):
    """A log in a bucket. Nothing is emptied, so an existing object always refuses a writer."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        super().__init__(store, url)
        self._most_at_once = READ_AT_ONCE
        self._tail = LogTail()

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        """Append a batch in one request; AppendConflict if the position is or was taken."""
        ids = batch_ids(entries)
        data = encode({"entries": entries})
        self._refuse_hole(position)
        if position == 0 and all(self._store.put_if_absent(PROBE, b"{}") for _ in range(2)):
            raise StateError(
                f"{self.url} can't hold a state: the server replaced an object that it was to create only if absent",
                "Use a server that honours If-None-Match on PUT (AWS S3, R2, MinIO, Google Cloud Storage, Azure), or a directory.",
                code="state-store-unsafe",
            )
        self._create(position, data, ids)
        self._tail.add(position, [dict(entry) for entry in entries], len(data))
        if position % TAIL_EVERY == TAIL_EVERY - 1 and self._tail.end == position + 1:
            self._write_tail()

    def _prune(self, snapshots: Sequence[int]) -> None:
        """Pack what the newest snapshot covers, and delete old snapshots."""
        self._archive.extend(snapshots[-1], self._batches, at_least=PACK_AFTER)
        self._tail.rebase(snapshots[-1])
        self._write_tail()  # leads readers to the snapshot
        self._drop_old(snapshots)

    def _read_whole(self) -> LogSlice:
        found = self._read_tail()
        if found is None:
            found = (*self._newest_fold(), [])
            self._tail.reset(found[0], [], 0)
        start, fold, batches = found
        begin = start + len(batches)
        later = self._unpruned(range(begin, self._end_of_listing(begin)))
        if not all(later):  # emptied, as in a copy of a directory
            return super()._read_whole()
        return self._slice([*batches, *later], start, fold)

    def _read_tail(self) -> tuple[int, JsonObject | None, list[Batch]] | None:
        """Return the position of a snapshot, its state, and batches after it; None if unknown."""
        with suppress(StateError):
            data = self._store.get(TAIL)
            tail = decode(TAIL, data, self.url) if data else {}
            start, batches = tail.get("start"), tail.get("batches")
            if isinstance(start, int) and isinstance(batches, list):
                fold = self._fold_at(start) if start else None
                if fold is not None or not start:
                    valid = [validate_batch(TAIL, batch, self.url) for batch in batches]
                    self._tail.reset(start, valid, len(data or b""))
                    return start, fold, valid
        return None

    def _write_tail(self) -> None:
        body = self._tail.body()
        if body is not None:
            with suppress(StateError, StorageError):  # only a cache
                self._store.put(TAIL, encode(body), durable=False)

    def _load(self, positions: range) -> Iterator[bytes | None]:
        if len(positions) <= 1:
            yield from super()._load(positions)
            return
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        with ThreadPoolExecutor(min(READ_AT_ONCE, len(positions))) as pool:
            yield from pool.map(self._store.get, (key_of(LOG, number) for number in positions))

    def _batches(self, positions: range) -> list[Batch]:
        known = self._tail.batches(positions)
        return known if known is not None else super()._batches(positions)

    def _decode(self, position: int, data: bytes) -> Batch:
        batch = super()._decode(position, data)
        self._tail.add(position, batch, len(data))
        return batch


class LogTail:
    """Batches after a snapshot that this process knows without a gap; thread-safe.

    Beyond ``KNOWN_BYTES`` it knows none until the next snapshot.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset(0, [], 0)

    def reset(self, start: int, batches: Sequence[Batch], size: int) -> None:
        """Begin with the batches from ``start``, the position of a snapshot."""
        with self._lock:
            self._start = start
            self._batches = [*batches]
            self._bytes = size

    def add(self, position: int, batch: Batch, size: int) -> None:
        """Add the batch of the next position; other positions are ignored."""
        with self._lock:
            if position == self._start + len(self._batches) and self._bytes <= KNOWN_BYTES:
                self._batches.append(batch)
                self._bytes += size
                if self._bytes > KNOWN_BYTES:
                    self._batches = []

    def rebase(self, start: int) -> None:
        """Drop batches before ``start``, the position of a snapshot."""
        with self._lock:
            known = start - self._start
            is_known = 0 <= known < len(self._batches)
            self._batches = self._batches[known:] if is_known else []
            self._bytes = sum(len(encode({"entries": batch})) for batch in self._batches)
            self._start = start

    def batches(self, positions: range) -> list[Batch] | None:
        """Return the batches of positions, None unless all are known."""
        begin, end = positions.start - self._start, positions.stop - self._start
        with self._lock:
            known = self._batches[max(begin, 0) : end]
        return known if begin >= 0 and len(known) == len(positions) else None

    @property
    def end(self) -> int:
        """The position after the last known one."""
        return self._start + len(self._batches)

    def body(self) -> JsonObject | None:
        """Return the object for readers; None if it were too large."""
        with self._lock:
            if self._bytes > TAIL_BYTES:
                return None
            return {"start": self._start, "batches": self._batches}
