"""``trainctl download``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.options import RunOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.begun import with_begun
from trainctl.operations.code import download_code
from trainctl.operations.runs import find_run, job_address


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    target: Annotated[
        Path,
        typer.Option("--target-directory", metavar="DIR", help="Where to put the directory."),
    ] = Path(),
) -> int:
    """Copy the code that a run ran here, as the directory PROJECT_JOB_RUN."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        place = download_code(workspace, found, target)
    session.output.print(str(place))
    return 0
