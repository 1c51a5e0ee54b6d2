"""Common part of apply, destroy and run: confirm, apply, print the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainctl.apply.engine import ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import ApplyResult
from trainctl.cli.options import OutputFormat, PlanFormat, PlanningFlags
from trainctl.cli.plans import ApplyFlags, plan_from_flags, show_plan
from trainctl.cli.session import CliSession, CommandExit
from trainctl.cli.workspaces import approve
from trainctl.errors import TrainctlError
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


@contextmanager
def errors_as_events(session: CliSession, format_: OutputFormat) -> Iterator[None]:
    """With JSON output, print an error as event, then the summary."""
    try:
        yield
    except TrainctlError as error:
        if format_ is not OutputFormat.JSON:
            raise
        JsonEventPrinter(session.output).fail(error)
        raise CommandExit(error.exit_code) from None


def execute_plan(
    session: CliSession,
    workspace: Workspace,
    plan: Plan,
    apply_flags: ApplyFlags,
    parallelism: int,
    *,
    resumed: bool = False,
) -> int:
    """Apply an approved plan and print the result; return the exit code.

    ``resumed``: an earlier apply of the plan made some of its changes, or all.
    """
    permit = ApplyPermissions(
        apply_flags.stop_running, apply_flags.named_runs, apply_flags.lock_seconds
    )
    options = ApplyOptions(permit, parallelism, apply_flags.lockfile is not None)

    def run(emit: Emit, interrupt: Interrupt) -> tuple[ApplyResult, FollowedRuns, int]:
        if resumed:
            workspace.notify(resumption_text(plan))
        result = apply(workspace, plan, options, emit, interrupt)
        if not apply_flags.wait:
            return result, {}, exit_code(result, ())
        reconciler = Reconciler(emit, interrupt, parallelism)
        runs = follow_apply(workspace, plan, result, reconciler, emit, interrupt)
        followed = {run.job.address: run.record for run in runs}
        return result, followed, exit_code(result, runs)

    output = session.output
    if apply_flags.format is OutputFormat.JSON:
        emit = JsonEventPrinter(output)
        workspace.notify = lambda text: emit(Event(EventType.DIAGNOSTIC, text))
        with Interrupt(output.note) as interrupt:
            result, followed, code = run(emit, interrupt)
        if code != 0 or not apply_flags.follows:  # following prints its own summary
            emit(summary_event(result, code, followed))
        return code
    with ProgressDisplay(output) as progress, Interrupt(progress.note) as interrupt:
        workspace.notify = progress.note
        result, followed, code = run(TextEventPrinter(output, progress), interrupt)
    output.note(*explain_hint_lines(result.failed.values(), output.error_style))
    output.prose(*result_lines(result, output, followed, destroy=plan.options.destroy))
    if not (apply_flags.wait or apply_flags.follows):
        output.note(*follow_lines(live_started_jobs(workspace, result)))
    return code


def plan_and_apply(
    session: CliSession,
    workspace: Workspace,
    flags: PlanningFlags,
    apply_flags: ApplyFlags,
    question: str = "Do you want to perform these actions?",
) -> int:
    """Plan, ask and apply; return the exit code."""
    with errors_as_events(session, apply_flags.format):
        expect = apply_flags.approved_digest(session, workspace.state_url)
        plan = plan_from_flags(workspace, flags, writes_lock=apply_flags.lockfile is None)
        planned = plan.digest
        if expect is not None:
            plan = approved_plan(workspace, plan, expect)
            apply_flags.require_images(plan)
        if apply_flags.format is OutputFormat.TEXT:
            show_plan(session, plan, PlanFormat.TEXT)
        elif not plan.usable:
            JsonEventPrinter(session.output).refuse(plan.diagnostics, plan.exit_code)
        if not plan.usable:
            return plan.exit_code
        if plan.has_changes and not (apply_flags.auto_approve or approve(session, question)):
            session.output.note("Nothing was changed.")
            return 1
        resumed = plan.digest != planned
        return execute_plan(
            session, workspace, plan, apply_flags, flags.parallelism, resumed=resumed
        )
