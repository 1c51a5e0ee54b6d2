"""``trainctl run``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.applying import Consent
from trainctl.cli.logs import print_logs
from trainctl.cli.options import Format, FormatOption
from trainctl.cli.planned import plan_and_apply
from trainctl.cli.planning import PlanningFlags, words
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.operations.runs import find_run, job_address
from trainctl.views.statuses import ended_code


def command(
    ctx: typer.Context,
    address: Annotated[list[str], typer.Argument(metavar="ADDRESS…", help="The jobs to run.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log until the run ends.")
    ] = False,
    auto_approve: planning.AutoApprove = False,
    stop_running: planning.StopRunning = False,
    format_: FormatOption = Format.TEXT,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
    parallelism: planning.Parallelism = 10,
) -> int:
    """Start one new run with today's code, whatever has changed."""
    session = session_of(ctx)
    jobs = tuple(str(job_address(word)) for word in address)
    flags = PlanningFlags(
        targets=jobs,
        runs=jobs,
        variables=words(var),
        var_files=tuple(var_file or ()),
        parallelism=parallelism,
    )
    consent = Consent(auto_approve, stop_running, format=format_, follows=follow)
    consent.require_someone(session)
    with open_workspace(session, flags) as workspace:
        code = plan_and_apply(session, workspace, flags, consent)
        if code != 0 or not follow:
            return code
        runs = [find_run(workspace.ledger.state(), job_address(job)) for job in jobs]
        return max(
            ended_code(print_logs(session, workspace, run, follow=True, format_=format_).record)
            for run in runs
        )
