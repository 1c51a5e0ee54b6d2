"""``trainctl plan`` and ``trainctl show``."""

from __future__ import annotations

from dataclasses import replace as replace_
from pathlib import Path
from typing import Annotated

import typer

from trainctl import __version__
from trainctl.cli import options
from trainctl.cli.options import PlanFormat, PlanFormatOption, PlanningFlags, option
from trainctl.cli.plans import load_plan, plan_from_flags, save_plan, show_plan, written_file
from trainctl.cli.session import CliSession, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.states import location_at
from trainctl.plan.values import OUTPUT_MARK

CHANGES = 2
"""The exit code of ``--detailed-exitcode`` if there are changes."""


def plan_command(
    ctx: typer.Context,
    out: Annotated[
        Path | None,
        option("--out FILE", 'Save the plan; apply it with "trainctl apply FILE"', options.OUTPUT),
    ] = None,
    format_: PlanFormatOption = PlanFormat.TEXT,
    detailed_exitcode: Annotated[
        bool, option("--detailed-exitcode", "Exit with 2 if there are changes", options.OUTPUT)
    ] = False,
    destroy: options.Destroy = False,
    refresh: options.Refresh = True,
    refresh_only: options.RefreshOnly = False,
    offline: options.Offline = False,
    upgrade: options.Upgrade = False,
    concise: Annotated[
        bool,
        option("--concise", "Show only counts, destroyed and replaced resources", options.OUTPUT),
    ] = False,
    target: options.Targets = None,
    exclude: options.Excludes = None,
    replace: options.Replaces = None,
    var: options.Variables = None,
    var_file: options.VarFiles = None,
    trust: options.TrustFile = None,
    parallelism: options.Parallelism = 10,
) -> int:
    """Preview the changes apply would make.

    Shows resources to create, replace or destroy, weights to transfer, estimated time and cost.
    """
    session = session_of(ctx)
    flags = PlanningFlags(
        refresh, refresh_only, offline, upgrade, destroy, target, exclude, replace, (), var, var_file,
        parallelism, trust=trust,
    )  # fmt: skip
    with open_workspace(session, flags) as workspace:
        plan = plan_from_flags(workspace, flags)
        saved = out if plan.usable else None
        if saved is not None:
            desired = workspace.desired
            state = location_at(workspace.state_url, desired.state)
            save_plan(saved, plan, replace_(desired, state=state), workspace.state_keys)
        show_plan(session, plan, format_, concise=concise, saved=saved)
        if not plan.usable:
            return plan.exit_code
    changes = plan.has_changes or (refresh_only and bool(plan.drift))
    return CHANGES if detailed_exitcode and changes else 0


def show_command(
    ctx: typer.Context,
    planfile: options.PlanFileArgument = None,
    format_: PlanFormatOption = PlanFormat.TEXT,
    out: Annotated[
        Path | None, option("--out FILE", "Write to this file, which is never code", options.OUTPUT)
    ] = None,
) -> int:
    """Show a saved plan, or without PLANFILE the current state."""
    session = session_of(ctx)
    if out is None:
        return _show(session, planfile, format_)
    terminal = session.output
    with written_file(out) as stream:
        session.output = terminal.redirected(stream)
        try:
            return _show(session, planfile, format_)
        finally:
            session.output = terminal


def _show(session: CliSession, planfile: Path | None, format_: PlanFormat) -> int:
    if planfile is not None:
        saved = load_plan(planfile, lambda: open_workspace(session).state_keys)
        show_plan(session, saved.plan, format_)
        return 0
    from trainctl.ledger.codec import state_to_json
    from trainctl.ledger.leases import open_leases
    from trainctl.views.plan.pages import HTML_MARK, code_block, html_page, preformatted
    from trainctl.views.state import state_lines

    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
    if format_ is PlanFormat.JSON:
        session.output.json({"trainctl_version": __version__, **state_to_json(state)})
        return 0
    lines = state_lines(state, open_leases(state))
    if format_ is PlanFormat.MARKDOWN:
        lines = [HTML_MARK, "", *code_block(lines)]
    elif format_ is PlanFormat.HTML:
        lines = html_page("State", [preformatted(lines)])
    elif session.output.is_file_in(session.directory):
        lines = [f"# {OUTPUT_MARK}", *lines]
    session.output.print("\n".join(lines))
    return 0
