"""``trainctl state pull``."""

from __future__ import annotations

import typer

from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.views.state_json import state_json


def command(ctx: typer.Context) -> int:
    """Print the whole state as JSON."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        session.output.json(state_json(workspace.ledger.state()))
    return 0
