"""``trainctl checkpoints url``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainctl.base.units import parse_duration
from trainctl.cli import planning
from trainctl.cli.options import Format, FormatOption, RunOption
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.errors import UsageError
from trainctl.operations.begun import with_begun
from trainctl.operations.checkpoints import artifacts
from trainctl.operations.runs import find_run, job_address
from trainctl.views.checkpoints import artifacts_json

_LONGEST_DAYS = 7


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="CHECKPOINT", help="Of which; of all by default."),
    ] = None,
    expires: Annotated[
        str,
        typer.Option("--expires", metavar="DURATION", help="How long URLs of a bucket work."),
    ] = "7d",
    run: RunOption = None,
    trust: planning.TrustFile = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show where the files of complete checkpoints can be had: presigned URLs of a bucket, or places of files."""
    session = session_of(ctx)
    seconds = _seconds(expires)
    with open_trusting(session, PlanningFlags(trust=trust)) as workspace:
        of = find_run(with_begun(workspace), job_address(address), run)
        found = artifacts(workspace, of, name, seconds)
    if format_ is Format.JSON:
        job = str(of.job.address).removeprefix("job.")
        session.output.json(artifacts_json(job, time.time(), found), links=True)
    else:
        for one in found:
            session.output.print(one.url, links=True)
    return 0


def _seconds(text: str) -> int:
    try:
        seconds = int(parse_duration(text))
    except ValueError as error:
        raise UsageError(f"--expires {text}: {error}") from None
    if not 1 <= seconds <= _LONGEST_DAYS * 86_400:
        raise UsageError(
            f"--expires {text}: a URL of a bucket lives from a second to seven days",
            "Write for example 12h or 7d.",
        )
    return seconds
