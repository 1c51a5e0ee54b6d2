"""``trainctl status``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import Format, FormatOption, RunOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.runs import job_address
from trainctl.operations.status import all_statuses, status
from trainctl.views.statuses import status_json, status_lines, status_table


def command(
    ctx: typer.Context,
    address: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="A job; all of them by default.")
    ] = None,
    run: RunOption = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show how jobs stand."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        if address is not None:
            one = status(workspace, job_address(address), run)
            if format_ is Format.JSON:
                session.output.json(status_json(one))
            else:
                for line in status_lines(one):
                    session.output.print(line)
            return 0
        found = all_statuses(workspace)
        if format_ is Format.JSON:
            session.output.json({"jobs": [status_json(one) for one in found]})
        else:
            for line in status_table(found, session.output.width):
                session.output.print(line)
    return 0
