"""Who fetches what, when several nodes need a listing at once. Every node comes to the same answer. See DESIGN.md, "Peers"."""

from __future__ import annotations

import heapq
from array import array
from typing import List, Mapping, Optional, Sequence

from trainctl.base.listing import Listing
from trainctl.node.content.parts import PACKED_BYTES, from_hex, is_in, lengths_of

_NOBODY = 2**16 - 1


class Owners:
    """Whom a node asks for each part, one after another.

    The slowest to send decides when everybody has everything, so all are to send as much. Of a part that some have, each of the others
    asks the holder that has the least to send so far. One that nobody has is fetched by an *owner*, who leaves some of the others to a
    *relay* if it has more to send than that one.
    """

    def __init__(self, listing: Listing, me: str, holds: Mapping[str, str]) -> None:
        self._nodes = sorted(holds)
        self._all = range(len(self._nodes))
        self._me = self._nodes.index(me)
        lengths = array("I", lengths_of(listing))
        self._held = [from_hex(holds[node], len(lengths)) for node in self._nodes]
        self._first, self._owner, self._relay = (
            array("H", [_NOBODY]) * len(lengths) for _ in range(3)
        )
        self._sends = [0] * len(self._nodes)
        self._choose_holders(lengths)
        self._choose_owners(lengths)
        self._choose_relays(lengths)

    def line(self, number: int) -> List[str]:
        """Whom this node asks for the part of that number, one after another, before the mirror; nobody comes after the node itself.

        Who has it comes first, or who fetches it and then who relays it; from there on the order is the same on every node, but for where it
        ends, and who is put in front asks none but those: so nobody waits in a circle. The parts of a node that has died are spread over the others.
        """
        known = _turned(self._holders(number), number)
        if not known:
            known = [one for one in (self._owner[number], self._relay[number]) if one != _NOBODY]
        rest = [node for node in self._all if node not in known]
        ranked = [*known, *_turned(rest, number)]
        line = ranked[: ranked.index(self._me)]
        first = self._first[number]
        if first != _NOBODY:
            line.remove(first)
            line.insert(0, first)
        return [self._nodes[node] for node in line]

    def late(self, number: int) -> bool:
        """Whether whom this node asks first will have to be given the part itself, so that all else should be asked of it before."""
        return self._first[number] == self._relay[number] != _NOBODY

    def _holders(self, number: int) -> List[int]:
        return [node for node, bits in enumerate(self._held) if is_in(bits, number)]

    def _choose_holders(self, lengths: Sequence[int]) -> None:
        """For this node the holder of each part that it asks first, another one each time, so that it receives from several at once.

        Small ones travel in packs: one holder hands one out to all.
        """
        turn = 0
        for number, length in enumerate(lengths):
            holders = self._holders(number)
            if not holders:
                continue
            receivers = [node for node in self._all if node not in holders]
            first: Optional[int]
            if length < PACKED_BYTES:
                first = min(holders, key=self._sends.__getitem__)
                self._sends[first] += length * len(receivers)
            else:
                first = self._spread(length, _turned(receivers, turn), holders)
            if self._me not in holders and first is not None:
                self._first[number] = first
            turn += 1

    def _spread(
        self, length: int, receivers: Sequence[int], holders: Sequence[int]
    ) -> Optional[int]:
        """Have each receiver ask the holder that has the least to send; whom this node asks, if it is one of them."""
        mine = None
        ready = [(self._sends[node], node) for node in holders]
        heapq.heapify(ready)
        for node in receivers:
            load, holder = ready[0]
            heapq.heapreplace(ready, (load + length, holder))
            if node == self._me:
                mine = holder
        for load, holder in ready:
            self._sends[holder] = load
        return mine

    def _choose_owners(self, lengths: Sequence[int]) -> None:
        """Who fetches what nobody has: whoever has the least to send, where half of what an owner could send counts, as the rest can be relayed.

        So those who have little begin to send at once, and get all of the mirror, while the others hand out what they have.
        """
        busy = list(self._sends)
        receivers = len(self._nodes) - 1
        for number, length in enumerate(lengths):
            if not self._holders(number):
                owner = self._owner[number] = busy.index(min(busy))
                busy[owner] += length * receivers // 2
                self._sends[owner] += length * receivers
                if owner != self._me:
                    self._first[number] = owner

    def _choose_relays(self, lengths: Sequence[int]) -> None:
        """Have owners that would send more than the mean leave some of the others to who sends the least.

        Of each part no more than it takes, as the owner begins to send it while it arrives, and of those that come first, as a relay has to get them.
        """
        sends = self._sends
        mean = sum(sends) // len(sends)
        most = self._relayed_of_each(lengths, mean)
        for number, length in enumerate(lengths):
            owner = self._owner[number]
            if owner == _NOBODY or length < PACKED_BYTES or sends[owner] <= mean:
                continue
            relay = sends.index(min(sends))
            others = [node for node in self._all if node not in (owner, relay)]
            count = min((sends[owner] - sends[relay]) // (2 * length), most[owner])
            served = _turned(others, number)[:count]
            if served:
                self._relay[number] = relay
                sends[owner] -= length * len(served)
                sends[relay] += length * len(served)
            if self._me in served:
                self._first[number] = relay

    def _relayed_of_each(self, lengths: Sequence[int], mean: int) -> List[int]:
        """By node to how many others it leaves to send each of its parts, so as to send no more than the mean."""
        owned = [0] * len(self._nodes)
        for number, length in enumerate(lengths):
            if self._owner[number] != _NOBODY:
                owned[self._owner[number]] += length
        return [-((mean - sent) // one) if one else 0 for sent, one in zip(self._sends, owned)]


def _turned(nodes: Sequence[int], number: int) -> List[int]:
    """In the same order, but another begins with each number."""
    turn = number % len(nodes) if nodes else 0
    return [*nodes[turn:], *nodes[:turn]]
