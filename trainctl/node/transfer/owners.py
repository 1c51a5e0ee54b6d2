"""Who fetches what, when several nodes need a listing at once. Every node comes to the same answer. See DESIGN.md, "Peers"."""

from __future__ import annotations

from typing import Dict, List, Mapping, Set, Tuple

from trainctl.node.content.listing import Listing
from trainctl.node.content.parts import Name, from_hex, names_of


class Owners:
    """The owner of each part, and who comes after it.

    Holders come before all others; among those who may, the owner is whoever has the least to send so far: the
    slowest to send decides when everybody has everything.
    """

    def __init__(self, listing: Listing, me: str, holds: Mapping[str, str]) -> None:
        self._me = me
        self._nodes = sorted(holds)
        names = list(names_of(listing))
        held = {node: from_hex(holds[node], [name for name, _ in names]) for node in self._nodes}
        load = dict.fromkeys(self._nodes, 0)
        self._holders: Dict[Name, Set[str]] = {}
        self._owner: Dict[Name, Tuple[str, int]] = {}
        for number, (name, length) in enumerate(names):
            holders = [node for node in self._nodes if held[node][name]]
            owner = min(holders or self._nodes, key=load.__getitem__)
            load[owner] += length * (len(self._nodes) - max(1, len(holders)))
            self._owner[name] = owner, number
            if holders:
                self._holders[name] = set(holders)

    def line(self, name: Name) -> List[str]:
        """Whom this node asks for a part, one after another, before the mirror; nobody comes after the node itself.

        It is the same order on every node, but for where it ends, so nobody waits in a circle. The parts of
        an owner that has died are spread over the others.
        """
        owner, number = self._owner[name]
        rest = [node for node in self._nodes if node != owner]
        turn = number % len(rest) if rest else 0
        rest = rest[turn:] + rest[:turn]
        holders = self._holders.get(name, set())
        ranked = [owner, *sorted(rest, key=lambda node: node not in holders)]
        return ranked[: ranked.index(self._me)]
