"""Plan, show, ask, apply: the way of every command that changes something."""

from __future__ import annotations

from trainctl.cli.consent import Consent, errors_as_events
from trainctl.cli.options import Format, PlanFormat
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.plans import make_plan, show_plan
from trainctl.cli.session import Session
from trainctl.errors import StalePlan
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.views.events import EventsJson

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
