"""``trainctl state migrate``: changes of the state alone."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import argument, option
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError
from trainctl.ledger.migration import abort_migration, migrate


def migrate_command(
    ctx: typer.Context,
    url: Annotated[str | None, argument("URL", "New place of the state, which is empty")] = None,
    abort: Annotated[bool, option("--abort", "Undo a move, to use the old place again")] = False,
) -> int:
    """Move the complete state to another place.

    The old place then refuses all commands with the URL of the new one. Repeat an interrupted move.
    """
    session = session_of(ctx)
    if (url is None) is not abort:
        raise UsageError("give either a URL or --abort", "For example: trainctl state migrate URL")
    with open_workspace(session) as workspace:
        old = workspace.ledger
        if url is None:
            left = abort_migration(old, workspace.ledger_at)
            session.output.print(f"The state is at {old.url} again. {left} can't be used any more.")
            return 0
        entries = migrate(old, workspace.ledger_at(url))
    session.output.print(f"Moved the state ({entries} entries) from {old.url} to {url}.")
    session.output.note(f"Write in the manifest: state: {{url: {url}}}")
    return 0
