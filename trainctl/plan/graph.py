"""Order and reach: which resource needs which, and in what order changes can be made."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import replace

from trainctl.desired.values import DesiredState
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change, PlanInputs, PlanOptions

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


def order_changes(
    changes: Iterable[Change], recorded: Mapping[Address, RecordedResource]
) -> tuple[Change, ...]:
    """The changes so that each comes after what it needs, and each removal after what needed it; else as they are given, removals last."""
    by_address = {change.address: change for change in changes}
    waits = change_dependencies(by_address, recorded)
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


def change_dependencies(
    changes: Mapping[Address, Change], recorded: Mapping[Address, RecordedResource]
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


def planned_addresses(
    desired: DesiredState, state: State, options: PlanOptions
) -> frozenset[Address]:
    """What a plan will speak of, known before anything is looked at: what it leaves alone needs no look."""
    inputs = PlanInputs(desired=desired, state=state, options=options)
    return frozenset(select_addresses(replace(inputs, options=expand_matrix_names(inputs))))


def expand_matrix_names(inputs: PlanInputs) -> PlanOptions:
    """The options with the name of a job that has a matrix standing for all of its jobs."""
    options, state = inputs.options, inputs.state
    known = {*inputs.desired.resources, *state.resources, *state.open_intents}
    many: dict[Address, list[Address]] = {}
    for address in sorted((one for one in known if one.key is not None), key=Address.rank):
        many.setdefault(address.group, []).append(address)

    def all_of(addresses: tuple[Address, ...]) -> tuple[Address, ...]:
        found = (
            [address] if address in known else many.get(address, [address]) for address in addresses
        )
        return tuple(dict.fromkeys(one for each in found for one in each))

    return replace(
        options,
        targets=all_of(options.targets),
        excludes=all_of(options.excludes),
        replace=all_of(options.replace),
        run=all_of(options.run),
    )


def select_addresses(inputs: PlanInputs) -> list[Address]:
    """The addresses to plan, sorted; the jobs of a matrix in the order in which it was written, and then those that it has no more."""
    options, state = inputs.options, inputs.state
    wanted = {} if options.destroy else dict(inputs.desired.resources)
    everything = (
        set(wanted) | set(state.resources) | set(state.open_intents) | set(state.orphaned_intents)
    )
    if options.refresh_only:
        everything = set(state.resources)
    if not options.targets and not options.excludes:
        return _sorted(everything, inputs.desired)
    needs = {address: resource.depends_on for address, resource in wanted.items()}
    leaving = {
        address: recorded.depends_on
        for address, recorded in state.resources.items()
        if address not in wanted
    }
    chosen = everything
    if options.targets:
        chosen = closure(options.targets, needs) | _with_dependants(options.targets, leaving)
    if options.excludes:
        chosen -= closure(options.excludes, reverse(needs))
        chosen -= closure(options.excludes, leaving)
    return _sorted(chosen & everything, inputs.desired)


def _sorted(addresses: Iterable[Address], desired: DesiredState) -> list[Address]:
    places = {address: place for place, address in enumerate(desired.resources)}

    def rank(address: Address) -> tuple[int, str, int, str]:
        kind, name, key = address.rank()
        return kind, name, places.get(address, len(places)), key

    return sorted(addresses, key=rank)


def _with_dependants(
    targets: tuple[Address, ...], leaving: dict[Address, tuple[Address, ...]]
) -> set[Address]:
    """Of what is to go, the targets and whatever has to go before them."""
    return closure([target for target in targets if target in leaving], reverse(leaving))
