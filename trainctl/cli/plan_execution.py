"""Common part of apply, destroy and run: confirm, apply, print the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from typer import Exit

from trainctl.apply.engine import ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import ApplyResult
from trainctl.cli.options import OutputFormat, PlanFormat, PlanningFlags
from trainctl.cli.plans import ApprovalFlags, plan_from_flags, show_plan
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import approve, require_terminal
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.apply import ApplyOptions, apply
from trainctl.operations.plan import approved_plan
from trainctl.operations.reconcile import Reconciler, exit_code, follow_apply, live_started_jobs
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.views.apply_result import (
    FollowedRuns,
    follow_lines,
    result_lines,
    resumption_text,
    summary_event,
)
from trainctl.views.events import JsonEventPrinter, TextEventPrinter
from trainctl.views.problems import explain_hint_lines
from trainctl.views.terminal.progress import ProgressDisplay

QUESTION = "Do you want to perform these actions?"


@dataclass(frozen=True, slots=True)
class ExecutionFlags:
    """Confirmation and other options of an apply."""

    auto_approve: bool = False
    stop_running: bool = False
    wait: bool = False
    format: OutputFormat = OutputFormat.TEXT
    lockfile_readonly: bool = False
    lock_timeout: float | None = None
    follows: bool = False
    allow_unresolved_images: bool = False
    named_runs: frozenset[str] = frozenset()

    def require_approval(self, session: CliSession) -> None:
        """Raise UsageError if confirmation is needed and there is no terminal."""
        if not self.auto_approve:
            require_terminal(session, ", or apply a plan saved by trainctl plan --out")

    def require_images(self, plan: Plan) -> None:
        """Raise PermissionDenied if a reviewed plan has images by name, unless they are allowed."""
        unresolved = sorted({row.image for row in plan.images if row.digest is None})
        if unresolved and not self.allow_unresolved_images:
            raise PermissionDenied(
                f"the digest of {unresolved[0]} is unknown, so another image may run than the reviewed one",
                "Name the image by digest (NAME@sha256:…), make its registry reachable from here, or pass --allow-unresolved-images.",
                code="unresolved-images",
            )


@contextmanager
def errors_as_events(session: CliSession, format_: OutputFormat) -> Iterator[None]:
    """With JSON output, print an error as event, then the summary."""
    try:
        yield
    except TrainctlError as error:
        if format_ is not OutputFormat.JSON:
            raise
        JsonEventPrinter(session.output).fail(error)
        raise Exit(error.exit_code) from None


def execute_plan(
    session: CliSession,
    workspace: Workspace,
    plan: Plan,
    execution_flags: ExecutionFlags,
    parallelism: int,
    *,
    resumed: bool = False,
) -> int:
    """Apply an approved plan and print the result; return the exit code.

    ``resumed``: an earlier apply of the plan made some of its changes, or all.
    """
    permit = ApplyPermissions(
        execution_flags.stop_running, execution_flags.named_runs, execution_flags.lock_timeout
    )
    options = ApplyOptions(permit, parallelism, execution_flags.lockfile_readonly)
    if execution_flags.format is OutputFormat.JSON:
        emit = JsonEventPrinter(session.output)
        workspace.notify = lambda text: emit(Event(EventType.DIAGNOSTIC, text))
        if resumed:
            workspace.notify(resumption_text(plan))
        with Interrupt(session.output.note) as interrupt:
            result, followed, code = _apply_and_follow(
                workspace, plan, options, execution_flags, emit, interrupt
            )
        if code != 0 or not execution_flags.follows:  # following prints its own summary
            emit(summary_event(result, code, followed))
        return code
    with ProgressDisplay(session.output) as progress, Interrupt(progress.note) as interrupt:
        workspace.notify = progress.note
        if resumed:
            workspace.notify(resumption_text(plan))
        result, followed, code = _apply_and_follow(
            workspace,
            plan,
            options,
            execution_flags,
            TextEventPrinter(session.output, progress),
            interrupt,
        )
    output = session.output
    output.note(*explain_hint_lines(result.failed.values(), output.error_style))
    output.prose(*result_lines(result, output, followed, destroy=plan.options.destroy))
    if not (execution_flags.wait or execution_flags.follows):
        output.note(*follow_lines(live_started_jobs(workspace, result)))
    return code


def _apply_and_follow(
    workspace: Workspace,
    plan: Plan,
    options: ApplyOptions,
    execution_flags: ExecutionFlags,
    emit: Emit,
    interrupt: Interrupt,
) -> tuple[ApplyResult, FollowedRuns, int]:
    result = apply(workspace, plan, options, emit, interrupt)
    if not execution_flags.wait:
        return result, {}, exit_code(result, ())
    reconciler = Reconciler(emit, interrupt, options.parallelism)
    runs = follow_apply(workspace, plan, result, reconciler, emit, interrupt)
    followed = {run.job.address: run.record for run in runs}
    return result, followed, exit_code(result, runs)


def plan_and_apply(
    session: CliSession,
    workspace: Workspace,
    flags: PlanningFlags,
    execution_flags: ExecutionFlags,
    question: str = QUESTION,
    approval: ApprovalFlags = ApprovalFlags(),  # noqa: B008 - frozen
) -> int:
    """Plan, ask and apply; return the exit code."""
    with errors_as_events(session, execution_flags.format):
        expect = approval.digest(session, workspace.state_url)
        plan = plan_from_flags(workspace, flags, writes_lock=not execution_flags.lockfile_readonly)
        planned = plan.digest
        if expect is not None:
            plan = approved_plan(workspace, plan, expect)
            execution_flags.require_images(plan)
        if execution_flags.format is OutputFormat.TEXT:
            show_plan(session, plan, PlanFormat.TEXT)
        elif not plan.usable:
            JsonEventPrinter(session.output).refuse(plan.diagnostics, plan.exit_code)
        if not plan.usable:
            return plan.exit_code
        if plan.has_changes and not (execution_flags.auto_approve or approve(session, question)):
            session.output.note("Nothing was changed.")
            return 1
        resumed = plan.digest != planned
        return execute_plan(
            session, workspace, plan, execution_flags, flags.parallelism, resumed=resumed
        )
