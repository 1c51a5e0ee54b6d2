"""``trainctl logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.logs import moment, print_logs
from trainctl.cli.options import Format, FormatOption, RunOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.begun import with_begun
from trainctl.operations.logs import Selection
from trainctl.operations.runs import find_run, job_address

_WHEN = "TIME"


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Only this rank's lines.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar=_WHEN, help="Only what was written since: 10m, 2h, or a time."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar=_WHEN, help="Only what was written before that."),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help="Only lines in which this is found."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", help="Only each rank's last lines.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends.")
    ] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="What the run's prepare_commands printed.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show what a run printed."""
    session = session_of(ctx)
    wanted = Selection(
        rank=rank,
        since=moment("--since", since),
        until=moment("--until", until),
        grep=grep,
        tail=tail,
        follow=follow,
        prepare=prepare,
    )
    with open_workspace(session) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        return print_logs(session, workspace, found, wanted, format_).code
