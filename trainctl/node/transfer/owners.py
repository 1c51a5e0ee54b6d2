"""Who fetches what, when several nodes need a listing at once. Every node comes to the same answer. See DESIGN.md, "Peers"."""

from __future__ import annotations

import heapq
from array import array
from typing import List, Mapping, Sequence

from trainctl.node.content.listing import Listing
from trainctl.node.content.parts import PACKED_BYTES, from_hex, is_in, lengths_of


class Owners:
    """Whom a node asks for each part, one after another.

    Of a part that nobody has, the owner is whoever has the least to send so far; of one that some have, each of the others asks the holder
    that has the least to send: the slowest to send decides when everybody has everything.
    """

    def __init__(self, listing: Listing, me: str, holds: Mapping[str, str]) -> None:
        self._nodes = sorted(holds)
        self._all = range(len(self._nodes))
        self._me = self._nodes.index(me)
        lengths = array("I", lengths_of(listing))
        self._held = [from_hex(holds[node], len(lengths)) for node in self._nodes]
        self._first = array("H", bytes(2 * len(lengths)))
        self._have_sent(lengths, self._have_fetched(lengths))

    def line(self, number: int) -> List[str]:
        """Whom this node asks for the part of that number, one after another, before the mirror; nobody comes after the node itself.

        Holders come first, and then it is the same order on every node, but for where it ends: so nobody waits in a circle. The parts of
        a node that has died are spread over the others.
        """
        first = self._first[number]
        holders = self._holders(number) or [first]
        rest = [node for node in self._all if node not in holders]
        ranked = [*_turned(holders, number), *_turned(rest, number)]
        if self._me not in holders:
            ranked.remove(first)
            ranked.insert(0, first)
        return [self._nodes[node] for node in ranked[: ranked.index(self._me)]]

    def _holders(self, number: int) -> List[int]:
        return [node for node, bits in enumerate(self._held) if is_in(bits, number)]

    def _have_fetched(self, lengths: Sequence[int]) -> List[int]:
        """Choose who fetches what nobody has, so that holders, who will send what they have as well, fetch less; what each sends of it."""
        sends = [0] * len(self._nodes)
        busy = [0] * len(self._nodes)
        for number, length in enumerate(lengths):
            holders = self._holders(number)
            for node in holders:
                busy[node] += length * (len(self._nodes) - len(holders)) // len(holders)
            if not holders:
                owner = busy.index(min(busy))
                self._first[number] = owner
                sends[owner] += length * (len(self._nodes) - 1)
                busy[owner] += length * (len(self._nodes) - 1)
        return sends

    def _have_sent(self, lengths: Sequence[int], sends: List[int]) -> None:
        """Choose for this node the holder of each part that it asks first, another one each time, so that it receives from several at once.

        Small ones travel in packs: one holder hands one out to all.
        """
        turn = 0
        for number, length in enumerate(lengths):
            holders = self._holders(number)
            if not holders:
                continue
            receivers = [node for node in self._all if node not in holders]
            if length < PACKED_BYTES:
                first = min(holders, key=sends.__getitem__)
                self._first[number] = first
                sends[first] += length * len(receivers)
            else:
                self._spread(number, length, _turned(receivers, turn), holders, sends)
            turn += 1

    def _spread(
        self,
        number: int,
        length: int,
        receivers: Sequence[int],
        holders: Sequence[int],
        sends: List[int],
    ) -> None:
        """Have each receiver ask the holder that has the least to send."""
        ready = [(sends[node], node) for node in holders]
        heapq.heapify(ready)
        for node in receivers:
            load, holder = ready[0]
            heapq.heapreplace(ready, (load + length, holder))
            if node == self._me:
                self._first[number] = holder
        for load, holder in ready:
            sends[holder] = load


def _turned(nodes: Sequence[int], number: int) -> List[int]:
    """In the same order, but another begins with each number."""
    turn = number % len(nodes) if nodes else 0
    return [*nodes[turn:], *nodes[:turn]]
