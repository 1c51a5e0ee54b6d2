"""``trainctl destroy``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.applying import plan_and_apply
from trainctl.cli.consent import Consent
from trainctl.cli.options import Format, FormatOption
from trainctl.cli.planning import PlanningFlags, words
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.remains import remains_of
from trainctl.views.apply_result import remains_lines

QUESTION = "Do you really want to destroy everything listed above?"


def command(
    ctx: typer.Context,
    auto_approve: planning.AutoApprove = False,
    stop_running: planning.StopRunning = False,
    delete_checkpoints: Annotated[
        bool, typer.Option("--delete-checkpoints", help="Delete the runs' checkpoints as well.")
    ] = False,
    format_: FormatOption = Format.TEXT,
    refresh: planning.Refresh = True,
    target: planning.Targets = None,
    exclude: planning.Excludes = None,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
    trust: planning.TrustFile = None,
    parallelism: planning.Parallelism = 10,
) -> int:
    """Take everything down: no machine, process or mount stays, and no data but the mirror and checkpoints."""
    session = session_of(ctx)
    flags = PlanningFlags(
        refresh=refresh,
        destroy=True,
        targets=words(target),
        excludes=words(exclude),
        variables=words(var),
        var_files=tuple(var_file or ()),
        parallelism=parallelism,
        trust=trust,
        delete_checkpoints=delete_checkpoints,
    )
    consent = Consent(auto_approve, stop_running, format=format_)
    consent.require_someone(session)
    with open_workspace(session, flags) as workspace:
        remains = remains_of(workspace)
        code = plan_and_apply(session, workspace, flags, consent, QUESTION)
        if code == 0 and format_ is Format.TEXT:
            kept = [
                one for one in remains if not (delete_checkpoints and one.what == "checkpoints")
            ]
            for line in remains_lines(kept):
                session.output.prose(line)
        return code
