"""``trainctl cache evict``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.listings import ListingFormat, ListingFormatOption, NodesOption, show
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.node_cache import Which, evict
from trainctl.views.node_cache import (
    EVICT_COLUMNS,
    cache_rows,
    evict_json,
    evict_lines,
    silent_lines,
)


def command(
    ctx: typer.Context,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Whose nodes.")],
    listings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LISTING]...", help="Ids, or addresses of weights; everything by default."
        ),
    ] = None,
    node: NodesOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """Evict weights from nodes' caches; what a live run needs stays. Exit code 1 if something that was named does, or a node can't be asked."""
    session = session_of(ctx)
    names = tuple(listings or ())
    with open_workspace(session) as workspace:
        report = evict(workspace, Which(cluster, tuple(node or ())), names, dry_run=dry_run)
    lines = evict_lines(report, dry_run=dry_run, width=session.output.width)
    rows = (EVICT_COLUMNS, cache_rows(report, EVICT_COLUMNS))
    show(session.output, format_, evict_json(report, dry_run=dry_run), rows, lines)
    for line in silent_lines(report):
        session.output.note(line)
    stays = any(row.outcome != "evicted" for row in report.listings)
    return 1 if (names and stays) or report.silent else 0
