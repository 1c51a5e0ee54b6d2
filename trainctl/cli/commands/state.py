"""``trainctl state``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import addresses, open_workspace
from trainctl.errors import UsageError
from trainctl.views.state import resource_json, resource_lines, state_json


def list_command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """List the addresses in the state."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        found = [str(address) for address in sorted(workspace.ledger.state().resources)]
    if format_ is Format.JSON:
        session.output.json({"addresses": found})
    else:
        for address in found:
            session.output.print(address)
    return 0


def show_command(
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


def pull_command(ctx: typer.Context) -> int:
    """Print the whole state as JSON."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        session.output.json(state_json(workspace.ledger.state()))
    return 0
