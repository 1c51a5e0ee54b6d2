"""``trainctl state list``."""

from __future__ import annotations

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace


def command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
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
