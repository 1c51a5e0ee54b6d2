"""What apply, destroy and run have in common: the walk on the screen, how it ended."""

from __future__ import annotations

from trainctl.apply.engine import Permit
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.result import Result
from trainctl.cli.consent import Consent, errors_as_events
from trainctl.cli.options import Format, PlanFormat
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.plans import make_plan, show_plan
from trainctl.cli.session import Session
from trainctl.errors import StalePlan
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.applying import ApplyOptions, apply
from trainctl.operations.continuing import Continuation
from trainctl.operations.waiting import exit_code, follow_apply, started
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
from trainctl.views.progress import Progress


def carry_out(
    session: Session, workspace: Workspace, plan: Plan, consent: Consent, parallelism: int
) -> int:
    """Apply a plan that was agreed to and say how it ended; the exit code."""
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
    for line in failure_lines(result, session.output):
        session.output.note(line)
    for line in result_lines(result, session.output, followed, destroy=plan.options.destroy):
        session.output.prose(line)
    if not (consent.wait or consent.follows):
        for line in follow_lines(started(workspace, result)):
            session.output.note(line)
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


QUESTION = "Do you want to perform these actions?"


def plan_and_apply(
    session: Session,
    workspace: Workspace,
    flags: PlanningFlags,
    consent: Consent,
    question: str = QUESTION,
    expect: str | None = None,
) -> int:
    """The exit code of the whole way. With JSON events the plan is not shown: standard output is theirs."""
    with errors_as_events(session, consent.format):
        plan = make_plan(workspace, flags, writes_lock=not consent.lockfile_readonly)
        require_digest(plan, expect)
        return _agree_and_apply(session, workspace, plan, consent, question, flags.parallelism)


def _agree_and_apply(
    session: Session,
    workspace: Workspace,
    plan: Plan,
    consent: Consent,
    question: str,
    parallelism: int,
) -> int:
    if consent.format is Format.TEXT:
        show_plan(session, plan, PlanFormat.TEXT)
    elif not plan.usable:
        EventsJson(session.output).refuse(plan.diagnostics, plan.exit_code)
    if not plan.usable:
        return plan.exit_code
    if plan.has_changes and not consent.given(session, question):
        session.output.note("Nothing was changed.")
        return 1
    from trainctl.cli.applying import carry_out  # loaded by who gets here alone

    return carry_out(session, workspace, plan, consent, parallelism)


def require_digest(plan: Plan, expect: str | None) -> None:
    """StalePlan if the plan is not the one that was reviewed."""
    if expect is not None and plan.digest != expect:
        raise StalePlan(
            "this plan is not the one that was reviewed",
            f"Expected {expect},\nit is     {plan.digest}.",
            code="not-the-reviewed-plan",
        )
