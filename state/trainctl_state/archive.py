"""``history/``: what was pruned from the log, verbatim, in packs that follow one another without gap or overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainctl.base.objects import ObjectStore
from trainctl_state.layout import (
    HISTORY,
    CorruptStateObject,
    decode,
    encode,
    key_of,
    position_of,
    validate_batch,
)

PACK_POSITIONS = 500
"""How many positions a pack holds at most, so that making and reading one stays small."""

Batch = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class HistoryPack:
    """The batches of the positions from ``first`` on."""

    first: int
    batches: tuple[Batch, ...]

    @property
    def next(self) -> int:
        """The position after its last."""
        return self.first + len(self.batches)


class HistoryArchive:
    """The packs of one log."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url

    def firsts(self) -> list[int]:
        """Where each pack begins, ascending."""
        positions = (position_of(key) for key, *_ in self._store.list(HISTORY))
        return [position for position in positions if position is not None]

    def last(self) -> HistoryPack | None:
        """The newest pack."""
        firsts = self.firsts()
        return self.pack(firsts[-1]) if firsts else None

    def pack(self, first: int) -> HistoryPack:
        """The pack that begins there. Damaged if it can't be read."""
        key = key_of(HISTORY, first)
        data = self._store.get(key)
        if data is None:
            raise CorruptStateObject(key, self._url, "is missing")
        batches = decode(key, data, self._url).get("batches")
        if not isinstance(batches, list) or not batches:
            raise CorruptStateObject(key, self._url, "contains no batches")
        return HistoryPack(first, tuple(validate_batch(key, batch, self._url) for batch in batches))

    def covering(self, position: int) -> HistoryPack | None:
        """The pack that holds a position; None if it wasn't packed."""
        first = max((first for first in self.firsts() if first <= position), default=None)
        pack = None if first is None else self.pack(first)
        return pack if pack is not None and position < pack.next else None

    def batch_at(self, position: int) -> Batch | None:
        """The batch of a position that was packed; None if it wasn't."""
        pack = self.covering(position)
        return None if pack is None else pack.batches[position - pack.first]

    def extend(self, end: int, load: Callable[[int], Batch]) -> list[HistoryPack]:
        """Pack everything up to the position ``end``; return the new packs."""
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
