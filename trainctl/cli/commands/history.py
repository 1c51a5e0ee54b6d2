"""``trainctl history``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import addresses, open_workspace
from trainctl.views.state import history_json, history_lines


def command(
    ctx: typer.Context,
    address: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="Only what happened to this.")
    ] = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show what was done, when and by whom."""
    session = session_of(ctx)
    wanted = addresses((address,), "ADDRESS")[0] if address else None
    with open_workspace(session) as workspace:
        rows = workspace.ledger.history(wanted)
    if format_ is Format.JSON:
        session.output.json(history_json(rows))
    else:
        for line in history_lines(rows, wanted, session.output.width):
            session.output.prose(line)
    return 0
