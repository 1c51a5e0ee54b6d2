"""What binds a review to an apply: a digest over what would be done, and over nothing that moves by itself."""

from __future__ import annotations

from collections.abc import Iterable

from trainctl.base.json import digest
from trainctl.model.action import Action
from trainctl.plan.diff import plain
from trainctl.plan.values import Change


def plan_digest(changes: Iterable[Change]) -> str:
    """The digest of the changes that do something, whatever their order."""
    acting = [change for change in changes if change.action is not Action.NOOP]
    return digest(
        [
            {
                "address": str(change.address),
                "action": change.action.json_actions,
                "after": plain(change.after),
                "replace_paths": [list(path) for path in change.replace_paths],
            }
            for change in sorted(acting, key=lambda change: change.address.rank())
        ]
    )
