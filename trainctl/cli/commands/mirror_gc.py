"""``trainctl mirror gc``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.listings import ListingFormat, ListingFormatOption, seconds, show
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.errors import UsageError
from trainctl.model.mirror_site import MirrorSite
from trainctl.operations.workspace import Workspace
from trainctl.views.mirror_care import (
    GC_COLUMNS,
    collected_json,
    collected_lines,
    collected_rows,
)
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.port import Mirror


def command(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    drop_unused: Annotated[
        str | None,
        typer.Option(
            "--drop-unused",
            metavar="TIME",
            help="Also drop what nobody has used for so long, for example 90d, whoever refers to it.",
        ),
    ] = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How long to wait for writers seen late."),
    ] = "30s",
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Collect in this mirror and not in the manifest's: in one that was used before.",
        ),
    ] = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option(
            "--endpoint-url", metavar="URL", help="The server of a bucket that --url names."
        ),
    ] = None,
    trust: planning.TrustFile = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """Delete what no state refers to any more. Safe beside running applies, and to interrupt."""
    session = session_of(ctx)
    asked = Collecting(
        dry_run=dry_run,
        grace_seconds=seconds(grace, "--grace"),
        unused_seconds=None if drop_unused is None else seconds(drop_unused, "--drop-unused"),
        tell=session.output.note,
    )
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        mirror = _named(workspace, url, endpoint_url) or workspace.declared_mirror
        report = mirror.collect(asked)
    lines = collected_lines(report, session.output.width)
    rows = (GC_COLUMNS, collected_rows(report))
    show(session.output, format_, collected_json(report), rows, lines)
    return 0


def _named(workspace: Workspace, url: str | None, endpoint_url: str | None) -> Mirror | None:
    if url is None and endpoint_url is None:
        return None
    from pydantic import ValidationError  # heavy, all of them

    from trainctl.manifest.types.location import Location
    from trainctl.operations.mirrors import without_end

    try:
        place = Location(url=url or "", endpoint_url=endpoint_url)
    except ValidationError as error:
        told = error.errors()[0]
        raise UsageError(f"--url: {told['msg']}", told.get("ctx", {}).get("detail", "")) from None
    return workspace.mirror_at(MirrorSite(place.url, without_end(place.endpoint_url)))
