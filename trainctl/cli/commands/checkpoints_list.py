"""``trainctl checkpoints list``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.options import ListingFormat, ListingFormatOption, RunOption
from trainctl.cli.partial import told_of
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.begun import with_begun
from trainctl.operations.checkpoints import all_known
from trainctl.operations.runs import job_address, runs_meant
from trainctl.views.checkpoints import checkpoint_csv, checkpoint_table, checkpoints_json


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    trust: planning.TrustFile = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """List the checkpoints of a run, or of the newest runs of a sweep."""
    session = session_of(ctx)
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        runs = runs_meant(with_begun(workspace), job_address(address), run)
        found, away = all_known(workspace, runs)
    if format_ is ListingFormat.JSON:
        session.output.json(checkpoints_json(found, away))
    elif format_ is ListingFormat.CSV:
        session.output.print(checkpoint_csv(found))
    else:
        for line in checkpoint_table(found, session.output.width, jobs=len(runs) > 1):
            session.output.prose(line)
    return told_of(session, away, "the checkpoints")
