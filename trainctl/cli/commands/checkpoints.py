"""``trainctl checkpoints``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trainctl.base.units import parse_duration
from trainctl.cli import planning
from trainctl.cli.logs import told_of
from trainctl.cli.options import Format, FormatOption, ListingFormat, ListingFormatOption, RunOption
from trainctl.cli.planning import PlanningFlags
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.errors import UsageError
from trainctl.operations.begun import with_begun
from trainctl.operations.checkpoints import all_known, artifacts, upload
from trainctl.operations.downloading import download
from trainctl.operations.runs import find_run, job_address, runs_meant
from trainctl.views.checkpoints import (
    artifacts_json,
    checkpoint_csv,
    checkpoint_table,
    checkpoints_json,
    left_out_words,
)


def list_command(
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


def download_command(
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


_LONGEST_DAYS = 7


def url_command(
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


def upload_command(
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
