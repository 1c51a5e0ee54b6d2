"""Which addresses a plan speaks of: all of them, or what ``--target`` and ``--exclude`` leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainctl.desired.values import Desired
from trainctl.ledger.state import State
from trainctl.model.address import Address
from trainctl.plan.graph import closure, reverse
from trainctl.plan.values import Inputs, Options


def planned(desired: Desired, state: State, options: Options) -> frozenset[Address]:
    """What a plan will speak of, known before anything is looked at: what it leaves alone needs no look."""
    inputs = Inputs(desired=desired, state=state, options=options)
    return frozenset(selected(replace(inputs, options=expanded(inputs))))


def expanded(inputs: Inputs) -> Options:
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


def selected(inputs: Inputs) -> list[Address]:
    """The addresses to plan, sorted; the jobs of a matrix in the order in which it was written, and then those that it has no more."""
    options, state = inputs.options, inputs.state
    wanted = {} if options.destroy else dict(inputs.desired.resources)
    everything = (
        set(wanted) | set(state.resources) | set(state.open_intents) | set(state.unfinished)
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
        chosen = closure(options.targets, needs) | _leaving(options.targets, leaving)
    if options.excludes:
        chosen -= closure(options.excludes, reverse(needs))
        chosen -= closure(options.excludes, leaving)
    return _sorted(chosen & everything, inputs.desired)


def _sorted(addresses: Iterable[Address], desired: Desired) -> list[Address]:
    places = {address: place for place, address in enumerate(desired.resources)}

    def rank(address: Address) -> tuple[int, str, int, str]:
        kind, name, key = address.rank()
        return kind, name, places.get(address, len(places)), key

    return sorted(addresses, key=rank)


def _leaving(
    targets: tuple[Address, ...], leaving: dict[Address, tuple[Address, ...]]
) -> set[Address]:
    """Of what is to go, the targets and whatever has to go before them."""
    return closure([one for one in targets if one in leaving], reverse(leaving))
