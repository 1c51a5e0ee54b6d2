"""``trainctl mirror list``."""

from __future__ import annotations

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.views.mirror import mirror_json, mirror_lines


def command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """List what the mirror holds, and who wants it."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        rows = workspace.mirror.sources()
    if format_ is Format.JSON:
        session.output.json(mirror_json(rows))
    else:
        for line in mirror_lines(rows, session.output.width):
            session.output.print(line)
    return 0
