"""``trainctl ssh``."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from trainctl.cli.options import RunOption, argument, option
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.jobs.runs import find_run, job_address, with_unrecorded_runs
from trainctl.operations.jobs.sessions import entry_command

RankOption = Annotated[int, option("--rank N", "Rank of the run")]


def ssh_command(
    ctx: typer.Context,
    address: Annotated[str, argument("ADDRESS", "Job, e.g. job.train")],
    command: Annotated[
        list[str] | None,
        argument("[-- COMMAND...]", "Command instead of a shell; one word is a shell command line"),
    ] = None,
    run: RunOption = None,
    rank: RankOption = 0,
    with_secrets: Annotated[
        bool, option("--with-secrets", "Set the variables that hold secrets, too")
    ] = False,
) -> int:
    """Open a shell in the environment of a run, or in the directory of an ended one."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        job_run = find_run(with_unrecorded_runs(workspace), job_address(address), run)
        argv = entry_command(
            workspace,
            job_run,
            rank,
            command or [],
            with_secrets=with_secrets,
            tty=session.stdin.isatty() and sys.stdout.isatty(),
        )
        session.output.flush()
        code = subprocess.run(argv, check=False).returncode
    return code if code >= 0 else 128 - code
