"""Resume approved work once nothing is in its way: for ``watch``, and while ``apply --wait`` follows its runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import Result
from trainctl.errors import Interrupted, PartlyDone, TrainctlError
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Severity
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.applying import ApplyOptions, apply
from trainctl.operations.beginnings import resumptions
from trainctl.operations.following import follow, run_event, send_again, waiting_of
from trainctl.operations.planning import plan_of
from trainctl.operations.runs import Run, newest_runs, refresh_all
from trainctl.operations.survey import LookOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.continuing import continued, lost
from trainctl.plan.room import WAITS
from trainctl.plan.values import Change, Options, Plan, Start
from trainctl.resources.jobs import why_not_yet
from trainctl.resources.run_control import runs_of


@dataclass
class Continuation:
    """Resumes approved work at each look; reports each problem once."""

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
        starts, unknown = self._resuming(workspace, chosen)
        chosen = [change for change in chosen if change.address not in unknown]
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
        """Report a problem, unless it was the last one reported; None: not of one address."""
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
        """Start the successors of lost runs from their newest complete checkpoints; and the jobs whose checkpoints are unknown now."""
        starts: dict[Address, Start] = {}
        unknown: set[Address] = set()
        for change in chosen:
            if lost(change):
                try:
                    starts |= resumptions(workspace, [change.address])
                except TrainctlError as error:
                    self.say(change.address, error.summary, EventType.DIAGNOSTIC)
                    if error.code != "no-such-checkpoint":
                        unknown.add(change.address)
        return starts, unknown


def follow_apply(
    workspace: Workspace,
    plan: Plan,
    result: Result,
    continuation: Continuation,
    emit: Emit,
    interrupt: Interrupt,
) -> list[Run]:
    """Watch an apply's runs; whenever one has ended, what waited is carried on, which the result takes in."""

    def go_on() -> list[Address]:
        started: list[Address] = []
        while waiting := {*result.deferred, *result.skipped}:
            try:
                later = continuation.carry_on(workspace, waiting)
            except TrainctlError as error:  # runs are followed all the same
                continuation.say(None, error.summary, EventType.DIAGNOSTIC)
                break
            if later is not None:
                result.carried_on(later)
                started += unfinished(workspace, plan, later)
            if later is None or not later.done:
                break
        return started

    return follow(workspace, unfinished(workspace, plan, result), emit, interrupt, go_on)


def unfinished(workspace: Workspace, plan: Plan, result: Result) -> list[Address]:
    """The jobs of a plan to wait for: those that got a new run, and those whose run was live already."""
    state = workspace.ledger.state()
    new = {
        change.address for change in result.done if change.action in (Action.CREATE, Action.REPLACE)
    }
    found = []
    for change in plan.changes:
        runs = (
            runs_of(state.resources.get(change.address)) if change.address.kind is Kind.JOB else ()
        )
        if runs and (change.address in new or runs[-1].status.live):
            found.append(change.address)
    return found


def started(workspace: Workspace, result: Result) -> list[Address]:
    """The jobs that an apply gave a run which goes on after it."""
    state = workspace.ledger.state()
    jobs = [one.address for one in result.done if one.action in (Action.CREATE, Action.REPLACE)]
    runs = {address: runs_of(state.resources.get(address)) for address in jobs}
    return [address for address, found in runs.items() if found and found[-1].status.live]


def exit_code(result: Result, followed: Iterable[Run]) -> int:
    """Of an apply that followed its runs: 12 as well if one did not complete, 130 if it was not followed to its end."""
    statuses = {run.record.status for run in followed}
    if result.exit_code == 0 and any(status.live for status in statuses):
        return Interrupted.exit_code
    if result.exit_code == 0 and statuses - {RunStatus.COMPLETED}:
        return PartlyDone.exit_code
    return result.exit_code


Open = Callable[[], AbstractContextManager[Workspace]]
"""Opens the manifest and the state as they are now."""


class Watcher:
    """Looks again and again; reports what changed since the last look, and each problem once."""

    def __init__(self, open_: Open, emit: Emit, interrupt: Interrupt, parallelism: int) -> None:
        self._open = open_
        self._emit = emit
        self._interrupt = interrupt
        self._continuation = Continuation(emit, interrupt, parallelism)

    def watch(self, interval: float) -> None:
        """Until the user has had enough; ``interval`` is in seconds."""
        while not self._interrupt.stopping.is_set():
            self.look()
            self._interrupt.stopping.wait(interval)

    def look(self) -> int:
        """Note how runs stand, then carry on what can be carried on; the exit code of this one look."""
        try:
            with self._open() as workspace:
                self._note_runs(workspace)
                result = self._continuation.carry_on(workspace)
            self._continuation.all_well()
        except TrainctlError as error:
            self._continuation.say(None, error.summary, EventType.DIAGNOSTIC)
            return error.exit_code
        return result.exit_code if result else 0

    def _note_runs(self, workspace: Workspace) -> None:
        runs = [one for one in newest_runs(workspace.ledger.state()) if one.record.status.live]
        seen = refresh_all(workspace, runs)
        for before, (now, problem) in zip(runs, seen, strict=True):
            if problem is not None:
                self._continuation.say(now.job.address, problem.summary, EventType.DIAGNOSTIC)
            elif now.record.status is not before.record.status:
                self._emit(run_event(now))
        send_again(workspace, waiting_of(now for now, _ in seen), self._emit)
