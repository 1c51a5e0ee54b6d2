"""``trainctl stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.consent import approve
from trainctl.cli.options import RunOption
from trainctl.cli.planning import duration
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import PartlyDone, UsageError
from trainctl.model.address import Address
from trainctl.operations.begun import with_begun
from trainctl.operations.runs import Run, find_run, job_address, newest_runs, refresh_all
from trainctl.operations.status import is_matrix
from trainctl.operations.stopping import stop, stop_all
from trainctl.operations.workspace import Workspace
from trainctl.views.progress import Progress
from trainctl.views.statuses import run_words
from trainctl.views.text import counted


def command(
    ctx: typer.Context,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="The job, or all jobs of a matrix."),
    ] = None,
    run: RunOption = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How long it may take to end by itself: 60s."),
    ] = "30s",
    every: Annotated[bool, typer.Option("--all", help="Stop every live run.")] = False,
    auto_approve: planning.AutoApprove = False,
) -> int:
    """End a run: its processes are asked to end, and after the grace made to. Of a matrix all runs, after one question."""
    session = session_of(ctx)
    if every == (address is not None) or (every and run):
        raise UsageError("stop takes the address of a job, or --all")
    seconds = duration("--grace", grace)
    with open_workspace(session) as workspace:
        if address is None:
            return _stop_many(session, workspace, _live(workspace), seconds)
        job = job_address(address)
        if run is None and is_matrix(workspace, job):
            return _stop_matrix(session, workspace, job, seconds, auto_approve=auto_approve)
        found = find_run(with_begun(workspace), job, run)
        with Progress(session.output) as progress:
            ended = stop(workspace, found, seconds, progress.listen)
    before = "" if found.record.status.live else " already"
    session.output.print(_line(ended, f"is{before} {run_words(ended.record)}"))
    return 0


def _live(workspace: Workspace, job: Address | None = None) -> list[Run]:
    """The live runs of all jobs, or of those of one matrix."""
    seen = refresh_all(workspace, list(newest_runs(with_begun(workspace), job)))
    return [run for run, _ in seen if run.record.status.live]


def _stop_matrix(
    session: Session, workspace: Workspace, job: Address, grace: float, *, auto_approve: bool
) -> int:
    live = _live(workspace, job)
    if live and not auto_approve:
        if not session.stdin.isatty():
            jobs = len(list(newest_runs(with_begun(workspace), job)))
            raise UsageError(
                f"{job} is {counted(jobs, 'job')}, of which {counted(len(live), 'run')} would be stopped",
                f"Pass --auto-approve, or name one, such as {live[0].job.address.typed}.",
            )
        if not approve(session, f"Do you want to stop {counted(len(live), 'run')} of {job}?"):
            session.output.note("Nothing was changed.")
            return 1
    return _stop_many(session, workspace, live, grace, f"{job}: ")


def _stop_many(
    session: Session, workspace: Workspace, live: list[Run], grace: float, whose: str = ""
) -> int:
    if not live:
        session.output.print(f"{whose}no run is live")
        return 0
    with Progress(session.output) as progress:
        ended = stop_all(workspace, live, grace, progress.listen)
    for run, problem in ended:
        how = (
            f"could not be stopped: {problem.summary}" if problem else f"is {run_words(run.record)}"
        )
        session.output.print(_line(run, how))
    return PartlyDone.exit_code if any(problem for _, problem in ended) else 0


def _line(run: Run, how: str) -> str:
    return f"{run.job.address}: run {run.record.number} ({run.record.id}) {how}"
