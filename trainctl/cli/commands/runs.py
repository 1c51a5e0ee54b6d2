"""``trainctl status``, ``stop`` and ``download``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import options
from trainctl.cli.options import Format, FormatOption, RunOption, duration, show
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import approve, open_workspace
from trainctl.errors import PartlyDone, UsageError
from trainctl.model.address import Address
from trainctl.model.reports import JobStatus
from trainctl.operations.code import download_code
from trainctl.operations.runs import (
    Run,
    find_run,
    job_address,
    newest_runs,
    refresh_all,
    with_begun,
)
from trainctl.operations.status import all_statuses, is_matrix, not_begun, status
from trainctl.operations.stopping import stop, stop_all
from trainctl.operations.survey.caches import full_caches
from trainctl.operations.workspace import Workspace
from trainctl.views.status import status_json, status_lines
from trainctl.views.statuses import stale_lines, status_table, sweep_lines, waiting_lines
from trainctl.views.terminal.progress import Progress
from trainctl.views.terminal.text import counted, warned


def status_command(
    ctx: typer.Context,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="A job, or the jobs of a matrix; all by default."),
    ] = None,
    run: RunOption = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show the status of jobs and their runs."""
    session = session_of(ctx)
    if run is not None and address is None:
        raise UsageError("--run is of one job", "Name it: trainctl status ADDRESS --run ID.")
    job = job_address(address) if address is not None else None
    with open_workspace(session) as workspace:
        if job is None or (run is None and is_matrix(workspace, job)):
            found = all_statuses(workspace, job)
            _show_all(session, found, not_begun(workspace, found, job), job, format_)
        else:
            one = status(workspace, job, run)
            lines = status_lines(one, time.time(), named=run is not None)
            show(session.output, format_, status_json(one), lines)
        for text in full_caches(workspace):
            session.output.note(warned(text, code="cache-too-full"))
    return 0


def _show_all(
    session: Session,
    found: Sequence[JobStatus],
    waiting: Sequence[Address],
    matrix: Address | None,
    format_: Format,
) -> None:
    """Print all jobs, or those of one matrix by its values, and those that wait for a later apply."""
    output = session.output
    if format_ is Format.JSON:
        jobs = [status_json(one) for one in found]
        output.json({"jobs": jobs, "not_begun": [str(one) for one in waiting]})
        return
    lines = (
        sweep_lines(found, time.time(), output.width)
        if matrix
        else status_table(found, output.width)
    )
    output.prose(*lines, *waiting_lines(waiting, found))
    output.note(*stale_lines(found))


def stop_command(
    ctx: typer.Context,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="The job, or all jobs of a matrix."),
    ] = None,
    run: RunOption = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL.")
    ] = "30s",
    every: Annotated[bool, typer.Option("--all", help="Stop all live runs.")] = False,
    auto_approve: options.AutoApprove = False,
) -> int:
    """Stop a run, or all runs of a matrix: SIGTERM, then SIGKILL after the grace period."""
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
    session.output.print(_line(ended, f"is{before} {ended.record.status.words}"))
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
        status_ = run.record.status.words
        how = f"could not be stopped: {problem.summary}" if problem else f"is {status_}"
        session.output.print(_line(run, how))
    return PartlyDone.exit_code if any(problem for _, problem in ended) else 0


def _line(run: Run, how: str) -> str:
    return f"{run.job.address}: run {run.record.number} ({run.record.id}) {how}"


def download_command(
    ctx: typer.Context,
    address: options.Job,
    run: RunOption = None,
    target: Annotated[
        Path,
        typer.Option("--target-directory", metavar="DIR", help="Where to put the directory."),
    ] = Path(),
) -> int:
    """Download the source code of a run, as the directory PROJECT_JOB_RUN."""
    session = session_of(ctx)
    with open_workspace(session) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        session.output.print(str(download_code(workspace, found, target)))
    return 0
