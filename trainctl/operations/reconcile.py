"""Resume approved work when nothing blocks it any longer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import ApplyResult
from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.errors import PartialApply, TrainctlError, UserInterrupt
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Severity
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.apply import ApplyOptions, apply
from trainctl.operations.plan import create_plan
from trainctl.operations.runs.control import filter_waiting, follow_runs, run_event, send_secrets
from trainctl.operations.runs.lookup import JobRun, newest_runs, refresh_runs
from trainctl.operations.runs.resume import resume_starts
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.deliveries import WAITING_FOR_SPACE
from trainctl.plan.plan_file import is_lost_run_retry, resumable_changes
from trainctl.plan.values import Change, Plan, PlanOptions, RerunRequest
from trainctl.resources.jobs import deferral_reason
from trainctl.resources.runs.run_control import runs_of


@dataclass
class Reconciler:
    """Resumes approved work; reports each problem once."""

    emit: Emit
    interrupt: Interrupt
    parallelism: int = 10
    _last_reported: dict[Address | None, str] = field(default_factory=dict)

    def run_once(self, open_: Callable[[], AbstractContextManager[Workspace]]) -> int:
        """Record the status of runs, resume ready work, return the exit code.

        ``open_`` opens the current manifest and state.
        """
        try:
            with open_() as workspace:
                runs = [
                    run for run in newest_runs(workspace.ledger.state()) if run.record.status.live
                ]
                refreshed = refresh_runs(workspace, runs)
                for before, (run, problem) in zip(runs, refreshed, strict=True):
                    if problem is not None:
                        self.report(run.job.address, problem.summary, EventType.DIAGNOSTIC)
                    elif run.record.status is not before.record.status:
                        self.emit(run_event(run))
                waiting = filter_waiting(run for run, _ in refreshed)
                send_secrets(workspace, waiting, self.emit)
                result = self.resume_ready(workspace)
            self._last_reported.pop(None, None)  # the next general problem is new
        except TrainctlError as error:
            self.report(None, error.summary, EventType.DIAGNOSTIC)
            return error.exit_code
        return result.exit_code if result else 0

    def resume_ready(
        self, workspace: Workspace, among: Collection[Address] | None = None
    ) -> ApplyResult | None:
        """Apply the ready changes (of ``among``); None if there are none."""
        plan = self._plan(workspace)
        chosen = [
            change
            for change in self._ready(workspace, plan)
            if among is None or change.address in among
        ]
        starts: dict[Address, RerunRequest] = {}
        for change in filter(is_lost_run_retry, [*chosen]):
            try:  # from its newest checkpoint
                starts |= resume_starts(workspace, [change.address], lost=True)
            except TrainctlError as error:
                self.report(change.address, error.summary, EventType.DIAGNOSTIC)
                if error.code != "checkpoint-not-found":
                    chosen.remove(change)
        if starts:
            plan = self._plan(workspace, starts)
            approved_in = {change.address: change.approved_in for change in chosen}
            chosen = [
                replace(change, approved_in=approved_in[change.address])
                for change in plan.changes
                if change.address in approved_in
            ]
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
        """Report a problem unless it was reported last; None: no single address."""
        if self._last_reported.get(address) != text:
            self._last_reported[address] = text
            self.emit(Event(kind, text, address))

    def _plan(
        self, workspace: Workspace, starts: Mapping[Address, RerunRequest] | None = None
    ) -> Plan:
        """Create a plan; TrainctlError if it has errors."""
        survey = SurveyOptions(parallelism=self.parallelism, applies=True)
        plan = create_plan(workspace, PlanOptions(edits_state=False, reuse=False), survey, starts)
        for diagnostic in plan.diagnostics:
            if diagnostic.severity is Severity.ERROR:
                prefix = f"{diagnostic.address}: " if diagnostic.address else ""
                summary = f"{prefix}{diagnostic.summary}"
                raise TrainctlError(summary, diagnostic.detail, code=diagnostic.code)
        return plan

    def _ready(self, workspace: Workspace, plan: Plan) -> list[Change]:
        """Return the resumable changes that nothing blocks; report the others."""
        waiting_for_space = {
            diagnostic.address: diagnostic.summary
            for diagnostic in plan.diagnostics
            if diagnostic.code == WAITING_FOR_SPACE
        }
        ready = []
        resumable = resumable_changes(plan, workspace.ledger.state())
        created = {change.address for change in resumable if change.address.kind is Kind.CLUSTER}
        for change in resumable:
            reason = ""
            if not created.intersection(change.depends_on):  # nodes that don't exist yet
                reason = deferral_reason(change, workspace.agents, workspace.ledger.recorded)
            reason = reason or waiting_for_space.get(str(change.address), "")
            if reason:
                self.report(change.address, reason, EventType.STEP_SKIPPED)
            else:
                ready.append(change)
        return ready


def follow_apply(
    workspace: Workspace,
    plan: Plan,
    result: ApplyResult,
    reconciler: Reconciler,
    emit: Emit,
    interrupt: Interrupt,
) -> list[JobRun]:
    """Follow an apply's runs; when one ends, apply waiting changes."""

    def resume_waiting() -> list[Address]:
        started: list[Address] = []
        while waiting := {*result.deferred, *result.skipped}:
            try:
                later = reconciler.resume_ready(workspace, waiting)
            except TrainctlError as error:  # keep following the runs
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
    """Return the plan's jobs that have a live run, or got one now or by an earlier apply of the plan."""
    state = workspace.ledger.state()
    new = {
        change.address for change in result.done if change.action in (Action.CREATE, Action.REPLACE)
    }
    new |= {
        change.address
        for change in plan.changes
        if change.action is Action.NOOP
        and state.plans.get(change.address, ("", 0))[0] == plan.digest
    }
    jobs = []
    for address in (change.address for change in plan.changes if change.address.kind is Kind.JOB):
        runs = runs_of(state.resources.get(address))
        if runs and (address in new or runs[-1].status.live):
            jobs.append(address)
    return jobs


def live_started_jobs(workspace: Workspace, result: ApplyResult) -> list[Address]:
    """Return the jobs whose new runs are still live."""
    resources = workspace.ledger.state().resources
    return [
        change.address
        for change in result.done
        if change.action in (Action.CREATE, Action.REPLACE)
        and (runs := runs_of(resources.get(change.address)))
        and runs[-1].status.live
    ]


def exit_code(result: ApplyResult, followed: Iterable[JobRun]) -> int:
    """Return the exit code: 12 if a run failed, 130 if one is still live."""
    statuses = {run.record.status for run in followed}
    if result.exit_code == 0 and any(status.live for status in statuses):
        return UserInterrupt.exit_code
    if result.exit_code == 0 and statuses - {RunStatus.COMPLETED}:
        return PartialApply.exit_code
    return result.exit_code
