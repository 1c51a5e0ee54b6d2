"""``trainctl mirror list``."""

from __future__ import annotations

import typer

from trainctl.cli import planning
from trainctl.cli.listings import ListingFormat, ListingFormatOption, show
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.look_mirror import DAMAGED_REFERENCE
from trainctl.views.mirror import MIRROR_COLUMNS, lost_lines, mirror_json, mirror_lines
from trainctl.views.text import warned


def command(
    ctx: typer.Context,
    trust: planning.TrustFile = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """List what the mirror holds, and who wants it."""
    session = session_of(ctx)
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        found = workspace.declared_mirror.inventory()
    form = mirror_json(found)
    lines = mirror_lines(found, session.output.width)
    show(session.output, format_, form, (MIRROR_COLUMNS, form["sources"]), lines)
    lost = (f"{one}." for one in lost_lines(found.rows))
    for one in (*lost, *(f"{one}. {DAMAGED_REFERENCE}" for one in found.damaged)):
        session.output.note(warned(one, code="mirror-damaged"))
    return 0
