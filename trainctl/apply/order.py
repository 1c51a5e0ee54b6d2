"""What each change has to wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change

_REMOVES = frozenset({Action.DELETE, Action.FORGET})
_NOTHING = frozenset({Action.NOOP, Action.READ})


def effective(changes: Iterable[Change]) -> dict[Address, Change]:
    """The changes that do something, by address, in plan order."""
    return {change.address: change for change in changes if change.action not in _NOTHING}


def waits_for(changes: Mapping[Address, Change], state: State) -> dict[Address, set[Address]]:
    """For each change, the changes that come first: what it needs is made before it, what needed it goes before it."""
    waits: dict[Address, set[Address]] = {address: set() for address in changes}
    for address, change in changes.items():
        recorded = state.resources.get(address)
        if change.action not in _REMOVES:
            waits[address] |= {
                needed
                for needed in change.depends_on
                if needed in changes and changes[needed].action not in _REMOVES
            }
        for needed in recorded.depends_on if recorded else ():
            if needed in changes and changes[needed].action in _REMOVES:
                waits[needed].add(address)
    return waits
