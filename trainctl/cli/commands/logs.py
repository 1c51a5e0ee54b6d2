"""``trainctl logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.logs import print_logs
from trainctl.cli.options import Format, FormatOption, RunOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.runs import find_run, job_address


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Only this rank's lines.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show what a run printed."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        found = find_run(workspace.ledger.state(), job_address(address), run)
        print_logs(session, workspace, found, rank=rank, follow=follow, format_=format_)
    return 0
