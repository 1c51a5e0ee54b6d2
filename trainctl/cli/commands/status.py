"""``trainctl status``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from trainctl.cli.options import Format, FormatOption, RunOption
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError
from trainctl.model.address import Address
from trainctl.model.status import JobStatus
from trainctl.operations.look_caches import full_caches
from trainctl.operations.runs import job_address
from trainctl.operations.status import all_statuses, is_matrix, not_begun, status
from trainctl.views.statuses import (
    stale_lines,
    status_json,
    status_lines,
    status_table,
    waiting_lines,
)
from trainctl.views.sweeps import sweep_lines
from trainctl.views.text import warned


def command(
    ctx: typer.Context,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="A job, or the jobs of a matrix; all by default."),
    ] = None,
    run: RunOption = None,
    format_: FormatOption = Format.TEXT,
) -> int:
    """Show how jobs stand."""
    session = session_of(ctx)
    if run is not None and address is None:
        raise UsageError("--run is of one job", "Name it: trainctl status ADDRESS --run ID.")
    job = job_address(address) if address is not None else None
    with open_workspace(session) as workspace:
        if job is None or (run is None and is_matrix(workspace, job)):
            found = all_statuses(workspace, job)
            _show_all(session, found, not_begun(workspace, found, job), job, format_)
        else:
            _show_one(session, status(workspace, job, run), format_, named=run is not None)
        for text in full_caches(workspace):
            session.output.note(warned(text, code="cache-too-full"))
    return 0


def _show_one(session: Session, found: JobStatus, format_: Format, *, named: bool) -> None:
    if format_ is Format.JSON:
        session.output.json(status_json(found))
        return
    for line in status_lines(found, time.time(), named=named):
        session.output.prose(line)


def _show_all(
    session: Session,
    found: Sequence[JobStatus],
    waiting: Sequence[Address],
    matrix: Address | None,
    format_: Format,
) -> None:
    """All jobs, or those of one matrix by its values, and those that wait for a later apply."""
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
    for line in [*lines, *waiting_lines(waiting, found)]:
        output.prose(line)
    for line in stale_lines(found):
        output.note(line)
