"""Resume approved work once nothing is in its way: for ``run_forever``, and while ``apply --wait`` follows its runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import ApplyResult
from trainctl.errors import PartialApply, TrainctlError, UserInterrupt
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Severity
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.apply import ApplyOptions, apply
from trainctl.operations.jobs.follow import filter_waiting, follow_runs, run_event, send_secrets
from trainctl.operations.jobs.resume import resume_starts
from trainctl.operations.jobs.runs import JobRun, newest_runs, refresh_runs
from trainctl.operations.plan import create_plan
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.plan_file import is_lost_run_retry, resumable_changes
from trainctl.plan.transfers.disk_space import WAITING_FOR_SPACE
from trainctl.plan.values import Change, Plan, PlanOptions, RerunRequest
from trainctl.resources.jobs import deferral_reason
from trainctl.resources.run_control import runs_of


@dataclass
class Reconciler:
    """Resumes approved work at each look; reports each problem once."""

    emit: Emit
    interrupt: Interrupt
    parallelism: int = 10
    _last_reported: dict[Address | None, str] = field(default_factory=dict)

    def resume_ready(
        self, workspace: Workspace, among: Collection[Address] | None = None
    ) -> ApplyResult | None:
        """Carry on what can be, of these addresses if any are named; None where that is nothing. TrainctlError where the plan is wrong."""
        plan = self._plan(workspace)
        chosen = [
            change
            for change in self._ready(workspace, plan)
            if among is None or change.address in among
        ]
        starts, unknown = self._resume_starts(workspace, chosen)
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

    def report(self, address: Address | None, text: str, kind: EventType) -> None:
        """Report a problem, unless it was the last one reported; None: not of one address."""
        if self._last_reported.get(address) != text:
            self._last_reported[address] = text
            self.emit(Event(kind, text, address))

    def clear_general_problem(self) -> None:
        """A look went well: the trouble that is of no one address is to be told again if it comes again."""
        self._last_reported.pop(None, None)

    def _plan(
        self, workspace: Workspace, starts: Mapping[Address, RerunRequest] | None = None
    ) -> Plan:
        """TrainctlError where an error stands in it: what `apply` would refuse isn't carried on in parts."""
        look = SurveyOptions(parallelism=self.parallelism, applies=True)
        plan = create_plan(workspace, PlanOptions(), look, starts)
        wrong = [
            diagnostic for diagnostic in plan.diagnostics if diagnostic.severity is Severity.ERROR
        ]
        if wrong:
            first = wrong[0]
            where = f"{first.address}: " if first.address else ""
            raise TrainctlError(f"{where}{first.summary}", first.detail, code=first.code)
        return plan

    def _ready(self, workspace: Workspace, plan: Plan) -> list[Change]:
        """What may be carried on and has nothing left to wait for."""
        no_room = {
            diagnostic.address: diagnostic.summary
            for diagnostic in plan.diagnostics
            if diagnostic.code == WAITING_FOR_SPACE
        }
        ready = []
        for change in resumable_changes(plan, workspace.ledger.state()):
            why = deferral_reason(change, workspace.agents, workspace.ledger.recorded)
            why = why or no_room.get(str(change.address), "")
            if why:
                self.report(change.address, why, EventType.STEP_SKIPPED)
            else:
                ready.append(change)
        return ready

    def _resume_starts(
        self, workspace: Workspace, chosen: list[Change]
    ) -> tuple[dict[Address, RerunRequest], set[Address]]:
        """Start the successors of lost runs from their newest complete checkpoints; and the jobs whose checkpoints are unknown now."""
        starts: dict[Address, RerunRequest] = {}
        unknown: set[Address] = set()
        for change in chosen:
            if is_lost_run_retry(change):
                try:
                    starts |= resume_starts(workspace, [change.address])
                except TrainctlError as error:
                    self.report(change.address, error.summary, EventType.DIAGNOSTIC)
                    if error.code != "checkpoint-not-found":
                        unknown.add(change.address)
        return starts, unknown


def follow_apply(
    workspace: Workspace,
    plan: Plan,
    result: ApplyResult,
    reconciler: Reconciler,
    emit: Emit,
    interrupt: Interrupt,
) -> list[JobRun]:
    """Watch an apply's runs; whenever one has ended, what waited is carried on, which the result takes in."""

    def resume_waiting() -> list[Address]:
        started: list[Address] = []
        while waiting := {*result.deferred, *result.skipped}:
            try:
                later = reconciler.resume_ready(workspace, waiting)
            except TrainctlError as error:  # runs are followed all the same
                reconciler.report(None, error.summary, EventType.DIAGNOSTIC)
                break
            if later is not None:
                result.merge(later)
                started += jobs_to_follow(workspace, plan, later)
            if later is None or not later.done:
                break
        return started

    return follow_runs(
        workspace, jobs_to_follow(workspace, plan, result), emit, interrupt, resume_waiting
    )


def jobs_to_follow(workspace: Workspace, plan: Plan, result: ApplyResult) -> list[Address]:
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


def live_started_jobs(workspace: Workspace, result: ApplyResult) -> list[Address]:
    """The jobs that an apply gave a run which goes on after it."""
    state = workspace.ledger.state()
    jobs = [one.address for one in result.done if one.action in (Action.CREATE, Action.REPLACE)]
    runs = {address: runs_of(state.resources.get(address)) for address in jobs}
    return [address for address, found in runs.items() if found and found[-1].status.live]


def exit_code(result: ApplyResult, followed: Iterable[JobRun]) -> int:
    """Of an apply that followed its runs: 12 as well if one did not complete, 130 if it was not followed to its end."""
    statuses = {run.record.status for run in followed}
    if result.exit_code == 0 and any(status.live for status in statuses):
        return UserInterrupt.exit_code
    if result.exit_code == 0 and statuses - {RunStatus.COMPLETED}:
        return PartialApply.exit_code
    return result.exit_code


OpenWorkspace = Callable[[], AbstractContextManager[Workspace]]
"""Opens the manifest and the state as they are now."""


class ReconcileLoop:
    """Looks again and again; reports what changed since the last look, and each problem once."""

    def __init__(
        self, open_: OpenWorkspace, emit: Emit, interrupt: Interrupt, parallelism: int
    ) -> None:
        self._open = open_
        self._emit = emit
        self._interrupt = interrupt
        self._reconciler = Reconciler(emit, interrupt, parallelism)

    def run_forever(self, interval: float) -> None:
        """Until the user has had enough; ``interval`` is in seconds."""
        while not self._interrupt.stopping.is_set():
            self.look()
            self._interrupt.stopping.wait(interval)

    def look(self) -> int:
        """Note how runs stand, then carry on what can be carried on; the exit code of this one look."""
        try:
            with self._open() as workspace:
                self._record_runs(workspace)
                result = self._reconciler.resume_ready(workspace)
            self._reconciler.clear_general_problem()
        except TrainctlError as error:
            self._reconciler.report(None, error.summary, EventType.DIAGNOSTIC)
            return error.exit_code
        return result.exit_code if result else 0

    def _record_runs(self, workspace: Workspace) -> None:
        runs = [
            newest_run
            for newest_run in newest_runs(workspace.ledger.state())
            if newest_run.record.status.live
        ]
        seen = refresh_runs(workspace, runs)
        for before, (now, problem) in zip(runs, seen, strict=True):
            if problem is not None:
                self._reconciler.report(now.job.address, problem.summary, EventType.DIAGNOSTIC)
            elif now.record.status is not before.record.status:
                self._emit(run_event(now))
        send_secrets(workspace, filter_waiting(now for now, _ in seen), self._emit)
