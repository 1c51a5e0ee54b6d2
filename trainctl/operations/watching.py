"""Carrying on what was approved, for as long as somebody watches: it never plans anything new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from trainctl.apply.interrupt import Interrupt
from trainctl.errors import TrainctlError
from trainctl.model.address import Address
from trainctl.model.diagnostics import Severity
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.applying import ApplyOptions, apply
from trainctl.operations.beginnings import resumptions
from trainctl.operations.following import run_event
from trainctl.operations.look_options import LookOptions
from trainctl.operations.planning import plan_of
from trainctl.operations.resending import send_again, waiting_of
from trainctl.operations.runs import newest_runs, refresh_all
from trainctl.operations.workspace import Workspace
from trainctl.plan.continuing import continued, lost
from trainctl.plan.values import Change, Options, Plan, Start
from trainctl.resources.jobs import why_not_yet

Open = Callable[[], AbstractContextManager[Workspace]]
"""Opens the manifest and the state as they are now."""


@dataclass
class Watcher:
    """Looks again and again; tells what changed since the last look, and each trouble once."""

    open: Open
    emit: Emit
    interrupt: Interrupt
    parallelism: int = 10
    _said: dict[Address | None, str] = field(default_factory=dict)

    def watch(self, interval: float) -> None:
        """Until the user has had enough; ``interval`` is in seconds."""
        while not self.interrupt.stopping.is_set():
            self.look()
            self.interrupt.stopping.wait(interval)

    def look(self) -> int:
        """Note how runs stand, then carry on what can be carried on; the exit code of this one look."""
        try:
            with self.open() as workspace:
                self._note_runs(workspace)
                code = self._carry_on(workspace)
            self._said.pop(None, None)
        except TrainctlError as error:
            self._say(None, error.summary, EventType.DIAGNOSTIC)
            return error.exit_code
        return code

    def _note_runs(self, workspace: Workspace) -> None:
        runs = [one for one in newest_runs(workspace.ledger.state()) if one.record.status.live]
        seen = refresh_all(workspace, runs)
        for before, (now, problem) in zip(runs, seen, strict=True):
            if problem is not None:
                self._say(now.job.address, problem.summary, EventType.DIAGNOSTIC)
            elif now.record.status is not before.record.status:
                self.emit(run_event(now))
        send_again(workspace, waiting_of(now for now, _ in seen), self.emit)

    def _carry_on(self, workspace: Workspace) -> int:
        plan = self._plan(workspace)
        chosen = self._ready(workspace, plan)
        starts, untold = self._resuming(workspace, chosen)
        chosen = [change for change in chosen if change.address not in untold]
        if starts:
            plan = self._plan(workspace, starts)
            addresses = {change.address for change in chosen}
            chosen = [change for change in plan.changes if change.address in addresses]
        if not chosen:
            return 0
        return apply(
            workspace,
            replace(plan, changes=tuple(chosen)),
            ApplyOptions(parallelism=self.parallelism, lockfile_readonly=True),
            self.emit,
            self.interrupt,
        ).exit_code

    def _plan(self, workspace: Workspace, starts: Mapping[Address, Start] | None = None) -> Plan:
        """TrainctlError where an error stands in it: what `apply` would refuse isn't carried on in parts."""
        look = LookOptions(parallelism=self.parallelism)
        plan = plan_of(workspace, Options(), look, starts)
        wrong = [one for one in plan.diagnostics if one.severity is Severity.ERROR]
        if wrong:
            first = wrong[0]
            where = f"{first.address}: " if first.address else ""
            raise TrainctlError(f"{where}{first.summary}", first.detail, code=first.code)
        return plan

    def _ready(self, workspace: Workspace, plan: Plan) -> list[Change]:
        """What may be carried on and has nothing left to wait for."""
        ready = []
        for change in continued(plan, workspace.ledger.state()):
            why = why_not_yet(change, workspace.agents, workspace.ledger.recorded)
            if why:
                self._say(change.address, why, EventType.STEP_SKIPPED)
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
                    self._say(change.address, error.summary, EventType.DIAGNOSTIC)
                    if error.code != "no-such-checkpoint":
                        untold.add(change.address)
        return starts, untold

    def _say(self, address: Address | None, text: str, kind: EventType) -> None:
        if self._said.get(address) != text:
            self._said[address] = text
            self.emit(Event(kind, text, address))
