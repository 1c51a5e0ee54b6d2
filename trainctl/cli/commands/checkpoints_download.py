"""``trainctl checkpoints download``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.options import RunOption
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.begun import with_begun
from trainctl.operations.downloading import download
from trainctl.operations.runs import find_run, job_address
from trainctl.views.checkpoints import left_out_words


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="CHECKPOINT", help="Which; the newest complete one by default."
        ),
    ] = None,
    target: Annotated[
        Path, typer.Option("--target", "--target-directory", metavar="DIR", help="Where to put it.")
    ] = Path(),
    rank: Annotated[int, typer.Option("--rank", metavar="N", help="Of which rank.")] = 0,
    run: RunOption = None,
    trust: planning.TrustFile = None,
) -> int:
    """Copy a checkpoint of a run here."""
    session = session_of(ctx)
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        place, left_out = download(workspace, found, target, name=name, rank=rank)
    session.output.print(str(place))
    if left_out:
        session.output.note(
            f"{left_out_words(left_out)}: they led out of the job's checkpoint directory, or nowhere"
        )
    return 0
