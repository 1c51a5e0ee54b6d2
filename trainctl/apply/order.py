"""What each change has to wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan import graph
from trainctl.plan.values import Change

_NOTHING = frozenset({Action.NOOP, Action.READ})


def effective(changes: Iterable[Change]) -> dict[Address, Change]:
    """The changes that do something, by address, in plan order."""
    return {change.address: change for change in changes if change.action not in _NOTHING}


def waits_for(changes: Mapping[Address, Change], state: State) -> dict[Address, set[Address]]:
    """For each change, the changes before it in the plan that come first.

    Only those before it: where records point in a circle, the plan has broken it, and a walk must not wait in it for ever.
    """
    waits = graph.waits_for(changes, state.resources)
    place = {address: index for index, address in enumerate(changes)}
    return {
        address: {one for one in needed if place[one] < place[address]}
        for address, needed in waits.items()
    }
