"""``trainctl nodes list``."""

from __future__ import annotations

import typer

from trainctl.cli.listings import ListingFormat, ListingFormatOption, show
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.nodes import look_at_all
from trainctl.views.nodes import COLUMNS, node_rows, nodes_json, nodes_lines


def command(ctx: typer.Context, format_: ListingFormatOption = ListingFormat.TEXT) -> int:
    """List the machines of clusters: whether each can be reached, GPUs, disk, cached weights, and live runs."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        reports = look_at_all(workspace)
    lines = nodes_lines(reports, session.output.width)
    show(session.output, format_, nodes_json(reports), (COLUMNS, node_rows(reports)), lines)
    return 0
