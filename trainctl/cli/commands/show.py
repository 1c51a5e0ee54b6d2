"""``trainctl show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.options import PlanFormat, PlanFormatOption
from trainctl.cli.plans import load_plan, show_plan
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.views.plan_html import page, preformatted
from trainctl.views.plan_markdown import fenced
from trainctl.views.state import state_json, state_lines


def command(
    ctx: typer.Context,
    planfile: Annotated[
        Path | None,
        typer.Argument(metavar="[PLANFILE]", help="A saved plan; the state by default."),
    ] = None,
    format_: PlanFormatOption = PlanFormat.TEXT,
) -> int:
    """Show a saved plan, or the state."""
    session = session_of(ctx)
    if planfile is not None:
        show_plan(session, load_plan(planfile).plan, format_)
        return 0
    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
    if format_ is PlanFormat.JSON:
        session.output.json(state_json(state))
        return 0
    lines = state_lines(state)
    if format_ is PlanFormat.MARKDOWN:
        lines = fenced(lines)
    elif format_ is PlanFormat.HTML:
        lines = page("State", [preformatted(lines)])
    session.output.print("\n".join(lines))
    return 0
