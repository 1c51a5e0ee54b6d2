"""The common part of apply, destroy and run: consent, the walk on the screen, the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from typer import Exit

from trainctl.apply.engine import Permit
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import Result
from trainctl.cli.options import Format, PlanFormat, PlanningFlags
from trainctl.cli.plans import make_plan, show_plan
from trainctl.cli.session import Session
from trainctl.cli.workspaces import approve, require_terminal
from trainctl.errors import StalePlan, TrainctlError
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.applying import ApplyOptions, apply
from trainctl.operations.continuing import Continuation, exit_code, follow_apply, started
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.views.apply_result import (
    Followed,
    failure_lines,
    follow_lines,
    result_lines,
    summary_event,
)
from trainctl.views.events import EventsJson, EventsText
from trainctl.views.terminal.progress import Progress

QUESTION = "Do you want to perform these actions?"


@dataclass(frozen=True, slots=True)
class Consent:
    """How the user agreed, or will be asked to, and the other options of the walk."""

    auto_approve: bool = False
    stop_running: bool = False
    wait: bool = False
    format: Format = Format.TEXT
    lockfile_readonly: bool = False
    lease_timeout: float = 0.0
    follows: bool = False
    named_runs: frozenset[str] = frozenset()

    def require_someone(self, session: Session) -> None:
        """Refuse at once if no user can be asked and none agreed beforehand."""
        if not self.auto_approve:
            require_terminal(session, ", or apply a plan file that was made with plan --out")


@contextmanager
def errors_as_events(session: Session, format_: Format) -> Iterator[None]:
    """With JSON events, print an error that ends the command as one of them, then the summary."""
    try:
        yield
    except TrainctlError as error:
        if format_ is not Format.JSON:
            raise
        EventsJson(session.output).fail(error)
        raise Exit(error.exit_code) from None


def carry_out(
    session: Session, workspace: Workspace, plan: Plan, consent: Consent, parallelism: int
) -> int:
    """Apply a plan that was agreed to and print the result; return the exit code."""
    permit = Permit(consent.stop_running, consent.named_runs, consent.lease_timeout)
    options = ApplyOptions(permit, parallelism, consent.lockfile_readonly)
    if consent.format is Format.JSON:
        emit = EventsJson(session.output)
        workspace.tell = lambda text: emit(Event(EventType.DIAGNOSTIC, text))
        with Interrupt(session.output.note) as interrupt:
            result, followed, code = _walk(workspace, plan, options, consent, emit, interrupt)
        if code != 0 or not consent.follows:  # what follows ends with a summary of its own
            emit(summary_event(result, code, followed))
        return code
    with Progress(session.output) as progress, Interrupt(progress.note) as interrupt:
        workspace.tell = progress.note
        result, followed, code = _walk(
            workspace, plan, options, consent, EventsText(session.output, progress), interrupt
        )
    output = session.output
    output.note(*failure_lines(result, output))
    output.prose(*result_lines(result, output, followed, destroy=plan.options.destroy))
    if not (consent.wait or consent.follows):
        output.note(*follow_lines(started(workspace, result)))
    return code


def _walk(
    workspace: Workspace,
    plan: Plan,
    options: ApplyOptions,
    consent: Consent,
    emit: Emit,
    interrupt: Interrupt,
) -> tuple[Result, Followed, int]:
    result = apply(workspace, plan, options, emit, interrupt)
    if not consent.wait:
        return result, {}, exit_code(result, ())
    continuation = Continuation(emit, interrupt, options.parallelism)
    runs = follow_apply(workspace, plan, result, continuation, emit, interrupt)
    followed = {run.job.address: run.record for run in runs}
    return result, followed, exit_code(result, runs)


def plan_and_apply(
    session: Session,
    workspace: Workspace,
    flags: PlanningFlags,
    consent: Consent,
    question: str = QUESTION,
    expect: str | None = None,
) -> int:
    """Plan, ask and apply; return the exit code. With JSON events the plan is not printed."""
    with errors_as_events(session, consent.format):
        plan = make_plan(workspace, flags, writes_lock=not consent.lockfile_readonly)
        require_digest(plan, expect)
        if consent.format is Format.TEXT:
            show_plan(session, plan, PlanFormat.TEXT)
        elif not plan.usable:
            EventsJson(session.output).refuse(plan.diagnostics, plan.exit_code)
        if not plan.usable:
            return plan.exit_code
        if plan.has_changes and not (consent.auto_approve or approve(session, question)):
            session.output.note("Nothing was changed.")
            return 1
        return carry_out(session, workspace, plan, consent, flags.parallelism)


def require_digest(plan: Plan, expect: str | None) -> None:
    """StalePlan if the plan is not the one that was reviewed."""
    if expect is not None and plan.digest != expect:
        raise StalePlan(
            "this plan is not the one that was reviewed",
            f"Expected {expect},\nit is     {plan.digest}.",
            code="not-the-reviewed-plan",
        )
