"""Order and reach: which resource needs which, and in what order changes can be made."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from trainctl.ledger.state import Recorded
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change

Edges = Mapping[Address, Iterable[Address]]

REMOVES = frozenset({Action.DELETE, Action.FORGET})


def closure(start: Iterable[Address], edges: Edges) -> set[Address]:
    """Everything that can be reached from the start, the start included."""
    reached: set[Address] = set()
    todo = list(start)
    while todo:
        address = todo.pop()
        if address not in reached:
            reached.add(address)
            todo.extend(edges.get(address, ()))
    return reached


def reverse(edges: Edges) -> dict[Address, list[Address]]:
    """The same edges, walked the other way."""
    turned: dict[Address, list[Address]] = {}
    for address, needed in edges.items():
        for one in needed:
            turned.setdefault(one, []).append(address)
    return turned


def ordered(changes: Iterable[Change], recorded: Mapping[Address, Recorded]) -> tuple[Change, ...]:
    """The changes so that each comes after what it needs, and each removal after what needed it; else as they are given, removals last."""
    by_address = {change.address: change for change in changes}
    waits = waits_for(by_address, recorded)
    ranks = {
        address: (change.action in REMOVES, place, address)
        for place, (address, change) in enumerate(by_address.items())
    }
    followers = reverse(waits)
    counts = {address: len(needed) for address, needed in waits.items()}
    ready = [ranks[address] for address, count in counts.items() if not count]
    heapq.heapify(ready)
    waiting = iter(sorted(ranks.values()))
    order: dict[Address, Change] = {}
    while len(order) < len(by_address):
        # Nothing ready and something left: records that point in a circle. The first address breaks it.
        *_, address = heapq.heappop(ready) if ready else next(waiting)
        if address in order:
            continue
        order[address] = by_address[address]
        for follower in followers.get(address, ()):
            counts[follower] -= 1
            if counts[follower] == 0:
                heapq.heappush(ready, ranks[follower])
    return tuple(order.values())


def waits_for(
    changes: Mapping[Address, Change], recorded: Mapping[Address, Recorded]
) -> dict[Address, set[Address]]:
    """For each change, the changes that come first: what it needs is made before it, what needed it goes before it."""
    waits: dict[Address, set[Address]] = {address: set() for address in changes}
    for address, change in changes.items():
        if change.action not in REMOVES:
            waits[address] |= {
                needed
                for needed in change.depends_on
                if needed in changes and changes[needed].action not in REMOVES
            }
        record = recorded.get(address)
        never_recorded = change.depends_on if change.action in REMOVES else ()
        for needed in record.depends_on if record else never_recorded:
            if needed in changes and changes[needed].action in REMOVES and needed != address:
                waits[needed].add(address)
    return waits
