"""How many resources a plan adds, changes and destroys, as every view counts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trainctl.model.action import Action
from trainctl.plan.values import Plan


@dataclass(frozen=True, slots=True)
class Counts:
    """A replacement counts in ``add`` and in ``destroy``, as everywhere."""

    add: int
    change: int
    destroy: int
    replace: int
    forget: int

    @classmethod
    def of(cls, plan: Plan) -> Counts:
        """The counts of a plan."""
        found = Counter(change.action for change in plan.changes)
        replaced = found[Action.REPLACE]
        return cls(
            add=found[Action.CREATE] + replaced,
            change=found[Action.UPDATE],
            destroy=found[Action.DELETE] + replaced,
            replace=replaced,
            forget=found[Action.FORGET],
        )

    def __str__(self) -> str:
        text = f"Plan: {self.add} to add, {self.change} to change, {self.destroy} to destroy"
        return f"{text}, {self.forget} to forget." if self.forget else f"{text}."
