"""``trainctl mirror verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.listings import ListingFormat, ListingFormatOption, show
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.mirror_repair import verify_mirror
from trainctl.views.mirror_care import FINDING_COLUMNS, finding_json, verified_json, verified_lines
from trainctl.views.progress import Progress


def command(
    ctx: typer.Context,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Fetch what is wrong again; what its source has no more goes."
        ),
    ] = False,
    trust: planning.TrustFile = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """Hash everything in the mirror again. Exit code 1 if something stays wrong."""
    session = session_of(ctx)
    flags = PlanningFlags(trust=trust)
    with open_trusting(session, flags) as workspace, Progress(session.output) as progress:
        report = verify_mirror(
            workspace,
            repair=repair,
            progress=lambda done, total, files: progress.track("mirror", "verifying", done, total),
        )
    rows = (FINDING_COLUMNS, map(finding_json, report.findings))
    lines = verified_lines(report, session.output.width)
    show(session.output, format_, verified_json(report), rows, lines, member="findings")
    return 0 if report.whole else 1
