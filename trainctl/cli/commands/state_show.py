"""``trainctl state show``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import addresses, open_workspace
from trainctl.errors import UsageError
from trainctl.views.state_json import resource_json
from trainctl.views.state_text import resource_lines


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="What to show.")],
    at: Annotated[
        int | None, typer.Option("--at", metavar="SERIAL", help="As it was at this serial.")
    ] = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show one resource as the state has it."""
    session = session_of(ctx)
    wanted = addresses((address,), "ADDRESS")[0]
    with open_workspace(session) as workspace:
        state = workspace.ledger.state() if at is None else workspace.ledger.state_at(at)
    recorded = state.resources.get(wanted)
    if recorded is None:
        raise UsageError(
            f"{wanted} is not in the state",
            "trainctl state list shows what is.",
            code="not-in-state",
        )
    if format_ is Format.JSON:
        session.output.json(resource_json(recorded))
    else:
        for line in resource_lines(recorded):
            session.output.prose(line)
    return 0
