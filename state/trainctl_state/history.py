"""History of a log: packs of the batches that a snapshot covers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainctl.base.objects import ObjectStore
from trainctl_state.layout import (
    HISTORY,
    Batch,
    CorruptStateObject,
    decode,
    encode,
    key_of,
    position_of,
    validate_batch,
)

PACK_POSITIONS = 500
"""Most positions in a pack, which keeps packs small."""


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
