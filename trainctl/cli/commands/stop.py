"""``trainctl stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.approval import approve
from trainctl.cli.options import RunOption
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError
from trainctl.model.address import Address
from trainctl.operations.runs import find_run, job_address, newest_runs, refresh_all
from trainctl.operations.status import is_matrix
from trainctl.operations.stopping import stop, stop_all
from trainctl.operations.workspace import Workspace
from trainctl.views.statuses import run_words
from trainctl.views.text import counted


def command(
    ctx: typer.Context,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The job, or all jobs of a matrix.")
    ],
    run: RunOption = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", help="How long it may take to end by itself."),
    ] = 30.0,
    auto_approve: planning.AutoApprove = False,
) -> int:
    """End a run: its processes are asked to end, and after the grace made to. Of a matrix all runs, after one question."""
    session = session_of(ctx)
    job = job_address(address)
    with open_workspace(session) as workspace:
        if run is None and is_matrix(workspace, job):
            return _stop_matrix(session, workspace, job, grace, auto_approve=auto_approve)
        found = find_run(workspace.ledger.state(), job, run)
        ended = stop(workspace, found, grace)
    before = "" if found.record.status.live else " already"
    session.output.print(
        f"{found.job.address}: run {ended.record.number} ({ended.record.id}) is{before} {run_words(ended.record)}"
    )
    return 0


def _stop_matrix(
    session: Session, workspace: Workspace, job: Address, grace: float, *, auto_approve: bool
) -> int:
    seen = [
        now for now, _ in refresh_all(workspace, list(newest_runs(workspace.ledger.state(), job)))
    ]
    live = [run for run in seen if run.record.status.live]
    if not live:
        session.output.print(f"{job}: no run is live")
        return 0
    if not auto_approve:
        if not session.stdin.isatty():
            raise UsageError(
                f"{job} is {counted(len(seen), 'job')}, of which {counted(len(live), 'run')} would be stopped",
                f"Pass --auto-approve, or name one, such as {live[0].job.address.typed}.",
            )
        if not approve(session, f"Do you want to stop {counted(len(live), 'run')} of {job}?"):
            session.output.note("Nothing was changed.")
            return 1
    code = 0
    for run, problem in stop_all(workspace, live, grace):
        how = (
            f"is {run_words(run.record)}"
            if problem is None
            else f"could not be stopped: {problem.summary}"
        )
        code = code if problem is None else 12
        session.output.print(f"{run.job.address}: run {run.record.number} ({run.record.id}) {how}")
    return code
