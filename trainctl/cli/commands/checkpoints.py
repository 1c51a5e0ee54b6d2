"""``trainctl checkpoints``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import options as options
from trainctl.cli.logs import report_missing
from trainctl.cli.options import (
    Format,
    FormatOption,
    ListingFormat,
    ListingFormatOption,
    RunOption,
    duration,
    show,
)
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.errors import UsageError
from trainctl.operations.checkpoints import all_known, artifacts, download, upload
from trainctl.operations.runs import find_run, job_address, runs_meant, with_begun
from trainctl.views.checkpoints import (
    CHECKPOINT_COLUMNS,
    artifacts_json,
    checkpoint_table,
    checkpoints_json,
    left_out_words,
)


def list_command(
    ctx: typer.Context,
    address: options.Job,
    run: RunOption = None,
    trust: options.TrustFile = None,
    format_: ListingFormatOption = ListingFormat.TEXT,
) -> int:
    """List the checkpoints of a job, or of the jobs of a matrix."""
    session = session_of(ctx)
    with open_trusting(session, trust) as workspace:
        runs = runs_meant(with_begun(workspace), job_address(address), run)
        found, away = all_known(workspace, runs)
    form = checkpoints_json(found, away)
    lines = checkpoint_table(found, session.output.width, jobs=len(runs) > 1)
    show(session.output, format_, form, lines, (CHECKPOINT_COLUMNS, form["checkpoints"]))
    return report_missing(session, away, "the checkpoints")


def download_command(
    ctx: typer.Context,
    address: options.Job,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="CHECKPOINT", help="The newest complete one by default."),
    ] = None,
    target: Annotated[
        Path, typer.Option("--target", "--target-directory", metavar="DIR", help="Where to put it.")
    ] = Path(),
    rank: Annotated[int, typer.Option("--rank", metavar="N", help="Rank that saved it.")] = 0,
    run: RunOption = None,
    trust: options.TrustFile = None,
) -> int:
    """Download a checkpoint; the newest complete one by default."""
    session = session_of(ctx)
    with open_trusting(session, trust) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        place, left_out = download(workspace, found, target, name=name, rank=rank)
    session.output.print(str(place))
    if left_out:
        session.output.note(
            f"{left_out_words(left_out)}: they led out of the job's checkpoint directory, or nowhere"
        )
    return 0


_LONGEST_DAYS = 7


def url_command(
    ctx: typer.Context,
    address: options.Job,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="CHECKPOINT", help="All complete ones by default."),
    ] = None,
    expires: Annotated[
        str,
        typer.Option("--expires", metavar="DURATION", help="How long URLs of a bucket work."),
    ] = "7d",
    run: RunOption = None,
    trust: options.TrustFile = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Print presigned URLs of the files of complete checkpoints, or their paths on nodes."""
    session = session_of(ctx)
    seconds = int(duration("--expires", expires))
    if not 1 <= seconds <= _LONGEST_DAYS * 86_400:
        raise UsageError(
            f"--expires {expires}: a URL of a bucket lives from a second to seven days",
            "Write for example 12h or 7d.",
        )
    with open_trusting(session, trust) as workspace:
        of = find_run(with_begun(workspace), job_address(address), run)
        found = artifacts(workspace, of, name, seconds)
    if format_ is Format.JSON:
        job = str(of.job.address).removeprefix("job.")
        session.output.json(artifacts_json(job, time.time(), found), links=True)
    else:
        for one in found:
            session.output.print(one.url, links=True)
    return 0


def upload_command(
    ctx: typer.Context,
    address: options.Job,
    run: RunOption = None,
    trust: options.TrustFile = None,
) -> int:
    """Upload checkpoints that a finished or lost run left on its node."""
    session = session_of(ctx)
    with open_trusting(session, trust) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        sync = upload(workspace, found)
    if not sync:
        session.output.print("The run keeps no checkpoints.")
    elif sync.get("error"):
        session.output.print(f"Done, but for this: {sync['error']}")
    else:
        session.output.print("Everything is in the store.")
    return 0
