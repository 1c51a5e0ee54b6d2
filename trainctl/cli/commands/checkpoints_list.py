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
from trainctl.operations.checkpoints import known_checkpoints
from trainctl.operations.runs import find_run, job_address
from trainctl.views.checkpoints import checkpoint_csv, checkpoint_table, checkpoints_json


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    trust: planning.TrustFile = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """List the checkpoints of a run."""
    session = session_of(ctx)
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        of = find_run(workspace.ledger.state(), job_address(address), run)
        found, away = known_checkpoints(workspace, of)
    if format_ is ListingFormat.JSON:
        session.output.json(checkpoints_json(found, away))
    elif format_ is ListingFormat.CSV:
        session.output.print(checkpoint_csv(str(of.job.address), found))
    else:
        for line in checkpoint_table(found, session.output.width):
            session.output.prose(line)
    return told_of(session, away, "the checkpoints")
