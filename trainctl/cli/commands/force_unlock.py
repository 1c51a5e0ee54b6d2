"""``trainctl force-unlock``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace


def command(
    ctx: typer.Context,
    lease: Annotated[
        str, typer.Argument(metavar="ID", help="The lease's id, as the refusal names it.")
    ],
) -> int:
    """End a lease by hand, where its holder is known to be gone."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        released = workspace.ledger.release(lease)
    session.output.print(f"{released.address}: released; {released.holder.who} held it.")
    return 0
