"""Dependencies between resources: selection of addresses and order of changes."""

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
    """Return all addresses reachable from the start, including the start."""
    reached: set[Address] = set()
    pending = list(start)
    while pending:
        address = pending.pop()
        if address not in reached:
            reached.add(address)
            pending.extend(edges.get(address, ()))
    return reached


def reverse(edges: Edges) -> dict[Address, list[Address]]:
    """Return the edges in the opposite direction."""
    reversed_edges: dict[Address, list[Address]] = {}
    for address, targets in edges.items():
        for target in targets:
            reversed_edges.setdefault(target, []).append(address)
    return reversed_edges


def order_changes(
    changes: Iterable[Change], recorded: Mapping[Address, RecordedResource]
) -> tuple[Change, ...]:
    """Sort changes by dependencies, else in the given order, with removals last."""
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
        # If nothing is ready, recorded dependencies have a cycle; the first address breaks it.
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
    """Return the changes to apply before each change.

    Dependencies come before a change, dependants before a removal.
    """
    waits: dict[Address, set[Address]] = {address: set() for address in changes}
    for address, change in changes.items():
        if change.action not in REMOVES:
            waits[address] |= {
                needed
                for needed in (*change.depends_on, *change.waits_for)
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
    """Return the addresses that a plan includes, and so need to be refreshed."""
    inputs = PlanInputs(desired=desired, state=state, options=options)
    return frozenset(select_addresses(replace(inputs, options=expand_matrix_names(inputs))))


def expand_matrix_names(inputs: PlanInputs) -> PlanOptions:
    """Expand names of matrices in the options to all of their jobs."""
    options, state = inputs.options, inputs.state
    known = {*inputs.desired.resources, *state.resources, *state.open_intents}
    jobs: dict[Address, list[Address]] = {}
    for address in sorted(filter(lambda address: address.key is not None, known), key=Address.rank):
        jobs.setdefault(address.group, []).append(address)

    def expand(addresses: tuple[Address, ...]) -> tuple[Address, ...]:
        expanded: list[Address] = []
        for address in addresses:
            expanded += [address] if address in known else jobs.get(address, [address])
        return tuple(dict.fromkeys(expanded))

    return replace(
        options,
        targets=expand(options.targets),
        excludes=expand(options.excludes),
        replace=expand(options.replace),
        run=expand(options.run),
    )


def select_addresses(inputs: PlanInputs) -> list[Address]:
    """Return the sorted addresses to plan; jobs of a matrix in their declared order."""
    options, state = inputs.options, inputs.state
    desired = {} if options.destroy else dict(inputs.desired.resources)
    everything = {*desired, *state.resources, *state.open_intents, *state.orphaned_intents}
    if options.refresh_only:
        everything = set(state.resources)
    if not options.targets and not options.excludes:
        return _sorted(everything, inputs.desired)
    dependencies = {address: resource.depends_on for address, resource in desired.items()}
    removed = {
        address: recorded.depends_on
        for address, recorded in state.resources.items()
        if address not in desired
    }
    selected = everything
    if options.targets:
        selected = closure(options.targets, dependencies)
        targets = [target for target in options.targets if target in removed]
        selected |= closure(targets, reverse(removed))
    if options.excludes:
        selected -= closure(options.excludes, reverse(dependencies))
        selected -= closure(options.excludes, removed)
    return _sorted(selected & everything, inputs.desired)


def _sorted(addresses: Iterable[Address], desired: DesiredState) -> list[Address]:
    positions = {address: position for position, address in enumerate(desired.resources)}

    def rank(address: Address) -> tuple[int, str, int, str]:
        kind, name, key = address.rank()
        return kind, name, positions.get(address, len(positions)), key

    return sorted(addresses, key=rank)
