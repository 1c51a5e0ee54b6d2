"""``trainctl checkpoints list``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.options import ListingFormat, ListingFormatOption, RunOption
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.checkpoints import checkpoints
from trainctl.operations.runs import find_run, job_address
from trainctl.views.checkpoints import checkpoint_csv, checkpoint_json, checkpoint_table


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
        found = checkpoints(workspace, of)
    if format_ is ListingFormat.JSON:
        session.output.json({"checkpoints": [checkpoint_json(one) for one in found]})
    elif format_ is ListingFormat.CSV:
        session.output.print(checkpoint_csv(str(of.job.address), found))
    else:
        for line in checkpoint_table(found, session.output.width):
            session.output.print(line)
    return 0
