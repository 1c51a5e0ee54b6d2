"""``trainctl metrics``."""

from __future__ import annotations

import shutil
import time
from enum import StrEnum
from typing import Annotated

import typer

from trainctl.cli.logs import told_of
from trainctl.cli.options import RunOption
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError
from trainctl.model.metrics import Sample
from trainctl.operations.begun import with_begun
from trainctl.operations.metrics import look, watch
from trainctl.operations.runs import Run, find_run, job_address
from trainctl.operations.workspace import Workspace
from trainctl.views.metrics import (
    metrics_csv,
    metrics_json,
    metrics_lines,
    plot_lines,
    sample_json,
)
from trainctl.views.progress import Live


class Form(StrEnum):
    """How samples are printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def command(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The job.")],
    run: RunOption = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", "--watch", help="Go on until the run ends."),
    ] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Only this rank's samples.")
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Show the run's history as curves.")] = False,
    format_: Annotated[Form, typer.Option("--format", help="How samples are printed.")] = Form.TEXT,
) -> int:
    """Show what a run uses of GPUs, CPU, memory and disk; as JSON or CSV all that it has used."""
    session = session_of(ctx)
    if plot and format_ is not Form.TEXT:
        raise UsageError("--plot draws text", f"Leave out --format {format_.value}.")
    if follow and format_ is Form.CSV:
        raise UsageError(
            "--follow has no CSV form", "With --format json it prints one sample a line."
        )
    with open_workspace(session) as workspace:
        found = find_run(with_begun(workspace), job_address(address), run)
        if follow:
            _follow(session, workspace, found, rank, format_, plot=plot)
            return 0
        seen = look(workspace, found, rank)
    if format_ is Form.JSON:
        record = seen.run.record
        session.output.json(metrics_json(found.job.address, record, seen.samples, seen.away))
    else:
        _print(session, seen.run, seen.samples, format_, plot=plot)
    return told_of(session, seen.away, "the samples")


def _print(session: Session, run: Run, samples: list[Sample], format_: Form, *, plot: bool) -> None:
    output = session.output
    if format_ is Form.CSV:
        output.print(metrics_csv(samples))
    else:
        for line in _lines(session, run, samples, plot=plot, live=False):
            output.print(line)


def _lines(
    session: Session, run: Run, samples: list[Sample], *, plot: bool, live: bool
) -> list[str]:
    def style(text: str, name: str) -> str:
        output = session.output
        return output.error_style(text, name) if live else output.style(text, name)

    width = shutil.get_terminal_size().columns if live else session.output.width
    lines = metrics_lines(run.job.address, run.record, samples, style, time.time(), width)
    curves = plot_lines(samples) if plot else []
    return [*lines, "", *curves] if curves else lines


def _follow(
    session: Session, workspace: Workspace, run: Run, rank: int | None, format_: Form, *, plot: bool
) -> None:
    """One sample a line as JSON; else a table that changes in place, or where that can't be, one whenever there is news."""
    if format_ is Form.JSON:
        for _, new in watch(workspace, run, rank):
            for one in new:
                session.output.json(sample_json(one), indent=None)
        return
    samples: list[Sample] = []
    if not session.output.draws:
        for now, new in watch(workspace, run, rank):
            samples += new
            if new:
                _print(session, now, samples, format_, plot=plot)
        return
    with Live(session.output) as live:
        for now, new in watch(workspace, run, rank):
            samples += new
            live.show(_lines(session, now, samples, plot=plot, live=True))
    _print(session, now, samples, format_, plot=plot)
