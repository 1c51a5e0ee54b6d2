"""Projects: a name that runs, caches and checkpoints are filed under. Nothing outside the state is made for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainctl.apply.step import Lookup, MayStop, Step
from trainctl.ledger.state import Intent, Recorded
from trainctl.plan.values import Observation
from trainctl.spi.provider import Presence


class ProjectHandler:
    """Keeps a project in the state."""

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """Nothing to make."""
        return {}

    def delete(self, step: Step) -> None:
        """Nothing to remove."""

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Nothing can be left."""
        return {}

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """A project is where the state is."""
        return Observation(Presence.PRESENT)
