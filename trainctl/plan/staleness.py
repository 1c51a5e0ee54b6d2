"""What moved since a plan was saved. Moves made under the same plan don't count: an interrupted apply of it carries on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.plan.values import Change, Plan


@dataclass(frozen=True, slots=True)
class Moved:
    """One thing that isn't as the plan saw it; ``address`` is None where it is the whole state."""

    address: Address | None
    what: str

    def __str__(self) -> str:
        return f"{self.address}: {self.what}" if self.address else self.what


def staleness(plan: Plan, state: State) -> tuple[Moved, ...]:
    """What a saved plan was made for and is not so any more; empty if it may be applied.

    A plan made before its state was born has no lineage, and fits any state that has none of its addresses.
    """
    if plan.lineage and plan.lineage != state.lineage:
        return (Moved(None, "the plan was made for another state"),)
    moved = tuple(_moved(plan, state))
    if not moved and plan.has_changes and not _left(plan, state):
        return (Moved(None, "the plan was applied already"),)
    return moved


def remaining(plan: Plan, state: State) -> tuple[Change, ...]:
    """The plan's changes without those that an earlier, interrupted apply of the same plan finished."""
    return tuple(
        change
        for change in plan.changes
        if change.action is Action.NOOP or not _done(plan, state, change.address, change.seen)
    )


def _moved(plan: Plan, state: State) -> Iterator[Moved]:
    seen = {change.address: change.seen for change in plan.changes}
    matters = _matters(plan)
    for address in sorted(matters & seen.keys()):
        if not state.moved(address, seen[address], plan.digest):
            continue
        times = state.versions.get(address, 0) - seen[address]
        often = "once" if times == 1 else f"{times} times"
        yield Moved(address, f"changed {often} since the plan was made")


def _matters(plan: Plan) -> set[Address]:
    """What the plan changes, and what those changes read."""
    changed = [change for change in plan.changes if change.action is not Action.NOOP]
    return {one.address for one in changed} | {
        needed for one in changed for needed in one.depends_on
    }


def _done(plan: Plan, state: State, address: Address, seen: int) -> bool:
    return state.plans.get(address) == (plan.digest, seen)


def _left(plan: Plan, state: State) -> bool:
    return any(change.action is not Action.NOOP for change in remaining(plan, state))
