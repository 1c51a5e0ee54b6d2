"""Who fetches what, when several nodes need a listing at once. Every node comes to the same answer. See DESIGN.md, "Peers"."""

from __future__ import annotations

import heapq
from typing import Dict, List, Mapping, Sequence, Tuple

from trainctl.node.content.listing import Listing
from trainctl.node.content.parts import PACKED_BYTES, Name, from_hex, names_of


class Owners:
    """Whom a node asks for each part, one after another.

    Of a part that nobody has, the owner is whoever has the least to send so far; of one that some have, each of the others asks the holder
    that has the least to send: the slowest to send decides when everybody has everything.
    """

    def __init__(self, listing: Listing, me: str, holds: Mapping[str, str]) -> None:
        self._me = me
        self._nodes = sorted(holds)
        parts = list(names_of(listing))
        names = [name for name, _ in parts]
        held = {node: from_hex(holds[node], names) for node in self._nodes}
        self._number = {name: number for number, name in enumerate(names)}
        self._holders: Dict[Name, List[str]] = {}
        for name in names:
            holders = [node for node in self._nodes if held[node][name]]
            if holders:
                self._holders[name] = holders
        self._first: Dict[Name, str] = {}
        self._have_sent(parts, self._have_fetched(parts))

    def line(self, name: Name) -> List[str]:
        """Whom this node asks for a part, one after another, before the mirror; nobody comes after the node itself.

        Holders come first, and then it is the same order on every node, but for where it ends: so nobody waits in a circle. The parts of
        a node that has died are spread over the others.
        """
        number = self._number[name]
        holders = self._holders.get(name) or [self._first[name]]
        rest = [node for node in self._nodes if node not in holders]
        ranked = [*_turned(holders, number), *_turned(rest, number)]
        if self._me not in holders:
            ranked.remove(self._first[name])
            ranked.insert(0, self._first[name])
        return ranked[: ranked.index(self._me)]

    def _have_fetched(self, parts: Sequence[Tuple[Name, int]]) -> Dict[str, int]:
        """Choose who fetches what nobody has, so that holders, who will send what they have as well, fetch less; what each sends of it."""
        receivers = len(self._nodes) - 1
        sends = dict.fromkeys(self._nodes, 0)
        busy = dict.fromkeys(self._nodes, 0)
        for name, length in parts:
            holders = self._holders.get(name, ())
            for node in holders:
                busy[node] += length * (len(self._nodes) - len(holders)) // len(holders)
            if not holders:
                owner = min(self._nodes, key=busy.__getitem__)
                self._first[name] = owner
                sends[owner] += length * receivers
                busy[owner] += length * receivers
        return sends

    def _have_sent(self, parts: Sequence[Tuple[Name, int]], sends: Dict[str, int]) -> None:
        """Choose for this node the holder of each part that it asks first, another one each time, so that it receives from several at once.

        Small ones travel in packs: one holder hands one out to all.
        """
        lengths = dict(parts)
        for turn, (name, holders) in enumerate(self._holders.items()):
            receivers = [node for node in self._nodes if node not in holders]
            ready = [(sends[node], node) for node in holders]
            if lengths[name] < PACKED_BYTES:
                self._first[name] = min(ready)[1]
                sends[self._first[name]] += lengths[name] * len(receivers)
                continue
            heapq.heapify(ready)
            for node in _turned(receivers, turn):
                load, holder = ready[0]
                heapq.heapreplace(ready, (load + lengths[name], holder))
                if node == self._me:
                    self._first[name] = holder
            sends.update({holder: load for load, holder in ready})


def _turned(nodes: Sequence[str], number: int) -> List[str]:
    """In the same order, but another begins with each number."""
    turn = number % len(nodes) if nodes else 0
    return [*nodes[turn:], *nodes[:turn]]
