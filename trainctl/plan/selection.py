"""Which addresses a plan speaks of: all of them, or what ``--target`` and ``--exclude`` leave."""

from __future__ import annotations

from trainctl.model.address import Address
from trainctl.plan.graph import closure, reverse
from trainctl.plan.values import Inputs


def selected(inputs: Inputs) -> list[Address]:
    """The addresses to plan, sorted."""
    options, state = inputs.options, inputs.state
    wanted = {} if options.destroy else dict(inputs.desired.resources)
    everything = (
        set(wanted) | set(state.resources) | set(state.open_intents) | set(state.unfinished)
    )
    if options.refresh_only:
        everything = set(state.resources)
    if not options.targets and not options.excludes:
        return sorted(everything, key=Address.rank)
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
    return sorted(chosen & everything, key=Address.rank)


def _leaving(
    targets: tuple[Address, ...], leaving: dict[Address, tuple[Address, ...]]
) -> set[Address]:
    """Of what is to go, the targets and whatever has to go before them."""
    return closure([one for one in targets if one in leaving], reverse(leaving))
