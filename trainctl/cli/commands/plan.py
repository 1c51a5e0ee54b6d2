"""``trainctl plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.options import PlanFormat, PlanFormatOption
from trainctl.cli.planning import PlanningFlags, words
from trainctl.cli.plans import make_plan, save_plan, show_plan
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace

CHANGES = 2
"""The exit code of ``--detailed-exitcode`` when there is something to do."""


def command(
    ctx: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Save the plan, to be applied as it is."),
    ] = None,
    format_: PlanFormatOption = PlanFormat.TEXT,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit 2 if there is something to do.")
    ] = False,
    destroy: Annotated[bool, typer.Option("--destroy", help="Plan to remove everything.")] = False,
    refresh: planning.Refresh = True,
    refresh_only: planning.RefreshOnly = False,
    offline: planning.Offline = False,
    upgrade: planning.Upgrade = False,
    concise: Annotated[
        bool, typer.Option("--concise", help="Only the counts and what is destroyed.")
    ] = False,
    target: planning.Targets = None,
    exclude: planning.Excludes = None,
    replace: planning.Replaces = None,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
    trust: planning.TrustFile = None,
    parallelism: planning.Parallelism = 10,
) -> int:
    """Show what apply would do: what changes, what moves where, how long it takes, what it costs."""
    session = session_of(ctx)
    flags = PlanningFlags(
        refresh=refresh,
        refresh_only=refresh_only,
        offline=offline,
        upgrade=upgrade,
        destroy=destroy,
        targets=words(target),
        excludes=words(exclude),
        replaces=words(replace),
        variables=words(var),
        var_files=tuple(var_file or ()),
        parallelism=parallelism,
        trust=trust,
    )
    with open_workspace(session, flags) as workspace:
        plan = make_plan(workspace, flags)
        saved = out if plan.usable else None
        if saved is not None:
            save_plan(saved, plan, workspace.desired)
        show_plan(session, plan, format_, concise=concise, saved=saved)
        if not plan.usable:
            return plan.exit_code
    return CHANGES if detailed_exitcode and plan.has_changes else 0
