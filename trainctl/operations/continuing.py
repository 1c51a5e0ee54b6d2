"""Carrying on what was approved once nothing is in its way any more; nothing new is planned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import Result
from trainctl.errors import TrainctlError
from trainctl.model.address import Address
from trainctl.model.diagnostics import Severity
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.applying import ApplyOptions, apply
from trainctl.operations.beginnings import resumptions
from trainctl.operations.look_options import LookOptions
from trainctl.operations.planning import plan_of
from trainctl.operations.workspace import Workspace
from trainctl.plan.continuing import continued, lost
from trainctl.plan.room import WAITS
from trainctl.plan.values import Change, Options, Plan, Start
from trainctl.resources.jobs import why_not_yet


@dataclass
class Continuation:
    """Looks as often as it is asked to; tells each trouble once."""

    emit: Emit
    interrupt: Interrupt
    parallelism: int = 10
    _said: dict[Address | None, str] = field(default_factory=dict)

    def carry_on(
        self, workspace: Workspace, among: Collection[Address] | None = None
    ) -> Result | None:
        """Carry on what can be, of these addresses if any are named; None where that is nothing. TrainctlError where the plan is wrong."""
        plan = self._plan(workspace)
        chosen = [
            change
            for change in self._ready(workspace, plan)
            if among is None or change.address in among
        ]
        starts, untold = self._resuming(workspace, chosen)
        chosen = [change for change in chosen if change.address not in untold]
        if starts:
            plan = self._plan(workspace, starts)
            addresses = {change.address for change in chosen}
            chosen = [change for change in plan.changes if change.address in addresses]
        if not chosen:
            return None
        return apply(
            workspace,
            replace(plan, changes=tuple(chosen)),
            ApplyOptions(parallelism=self.parallelism, lockfile_readonly=True),
            self.emit,
            self.interrupt,
        )

    def say(self, address: Address | None, text: str, kind: EventType) -> None:
        """Tell a trouble, unless it is the one that was told last; None: not of one address."""
        if self._said.get(address) != text:
            self._said[address] = text
            self.emit(Event(kind, text, address))

    def all_well(self) -> None:
        """A look went well: the trouble that is of no one address is to be told again if it comes again."""
        self._said.pop(None, None)

    def _plan(self, workspace: Workspace, starts: Mapping[Address, Start] | None = None) -> Plan:
        """TrainctlError where an error stands in it: what `apply` would refuse isn't carried on in parts."""
        look = LookOptions(parallelism=self.parallelism, applies=True)
        plan = plan_of(workspace, Options(), look, starts)
        wrong = [one for one in plan.diagnostics if one.severity is Severity.ERROR]
        if wrong:
            first = wrong[0]
            where = f"{first.address}: " if first.address else ""
            raise TrainctlError(f"{where}{first.summary}", first.detail, code=first.code)
        return plan

    def _ready(self, workspace: Workspace, plan: Plan) -> list[Change]:
        """What may be carried on and has nothing left to wait for."""
        no_room = {one.address: one.summary for one in plan.diagnostics if one.code == WAITS}
        ready = []
        for change in continued(plan, workspace.ledger.state()):
            why = why_not_yet(change, workspace.agents, workspace.ledger.recorded)
            why = why or no_room.get(str(change.address), "")
            if why:
                self.say(change.address, why, EventType.STEP_SKIPPED)
            else:
                ready.append(change)
        return ready

    def _resuming(
        self, workspace: Workspace, chosen: list[Change]
    ) -> tuple[dict[Address, Start], set[Address]]:
        """A lost run's next begins with its newest complete checkpoint, where there is one; and those of which nobody can tell now."""
        starts: dict[Address, Start] = {}
        untold: set[Address] = set()
        for change in chosen:
            if lost(change):
                try:
                    starts |= resumptions(workspace, [change.address])
                except TrainctlError as error:
                    self.say(change.address, error.summary, EventType.DIAGNOSTIC)
                    if error.code != "no-such-checkpoint":
                        untold.add(change.address)
        return starts, untold
