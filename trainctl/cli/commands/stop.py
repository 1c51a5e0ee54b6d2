"""``trainctl stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import RunOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.runs import find_run, job_address
from trainctl.operations.stopping import stop
from trainctl.views.statuses import run_words


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", help="How long it may take to end by itself."),
    ] = 30.0,
) -> int:
    """End a run: its processes are asked to end, and after the grace made to."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        found = find_run(workspace.ledger.state(), job_address(address), run)
        ended = stop(workspace, found, grace)
    before = "" if found.record.status.live else " already"
    session.output.print(
        f"{found.job.address}: run {ended.record.number} ({ended.record.id}) is{before} {run_words(ended.record)}"
    )
    return 0
