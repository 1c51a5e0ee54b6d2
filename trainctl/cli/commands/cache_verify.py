"""``trainctl cache verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.listings import ListingFormat, ListingFormatOption, NodesOption, show
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.node_cache import Which, verify
from trainctl.views.node_cache import (
    VERIFY_COLUMNS,
    cache_rows,
    silent_lines,
    verify_json,
    verify_lines,
)
from trainctl.views.progress import Progress


def command(
    ctx: typer.Context,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Whose nodes.")],
    node: NodesOption = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """Hash the weights in nodes' caches again; repair what is wrong, or drop it. Exit code 1 if something stays wrong, or a node can't be asked."""
    session = session_of(ctx)
    which = Which(cluster, tuple(node or ()))
    with open_workspace(session) as workspace, Progress(session.output) as progress:
        report = verify(
            workspace,
            which,
            lambda node_id, done, total: progress.track(node_id, "verifying", done, total),
        )
    lines = verify_lines(report, session.output.width)
    rows = (VERIFY_COLUMNS, cache_rows(report, VERIFY_COLUMNS))
    show(session.output, format_, verify_json(report), rows, lines)
    for line in silent_lines(report):
        session.output.note(line)
    wrong = any(row.outcome == "wrong" for row in report.listings)
    return 1 if wrong or report.silent else 0
