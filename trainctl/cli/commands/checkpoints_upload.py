"""``trainctl checkpoints upload``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.options import RunOption
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.begun import with_begun
from trainctl.operations.checkpoints import upload
from trainctl.operations.runs import find_run, job_address


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    trust: planning.TrustFile = None,
) -> int:
    """Bring to the store what an ended or lost run left on its node."""
    session = session_of(ctx)
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        sync = upload(workspace, found)
    if not sync:
        session.output.print("The run keeps no checkpoints.")
    elif sync.get("error"):
        session.output.print(f"Done, but for this: {sync['error']}")
    else:
        session.output.print("Everything is in the store.")
    return 0
