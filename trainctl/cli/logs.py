"""Print the log of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from trainctl.cli.options import OutputFormat, duration
from trainctl.cli.session import CliSession
from trainctl.errors import NodeError, NodeUnreachable, UsageError
from trainctl.model.reports import UnreachableNode
from trainctl.operations.runs.follow import mask_secrets
from trainctl.operations.runs.logs import LogSelection, LogTime, read_log
from trainctl.operations.runs.lookup import JobRun, refresh_run
from trainctl.operations.workspace import Workspace
from trainctl.views.events import JsonEventPrinter
from trainctl.views.runs.logs import JsonLogPrinter, TextLogPrinter
from trainctl.views.terminal.text import unreachable_lines, warning_text


@dataclass(frozen=True, slots=True)
class PrintedLog:
    """The run after printing its log, and the exit code: 0 if no part is missing."""

    run: JobRun
    code: int


def print_logs(
    session: CliSession,
    workspace: Workspace,
    run: JobRun,
    selection: LogSelection,
    format_: OutputFormat,
    *,
    closes: bool = True,
) -> PrintedLog:
    """Print the job's own lines, prefixed with the rank if there are several.

    With ``closes`` a summary is the last event.
    """
    emit = JsonEventPrinter(session.output)
    view: TextLogPrinter | JsonLogPrinter
    if format_ is OutputFormat.JSON:
        view = JsonLogPrinter(emit, run.job.address, run.record.id)
    else:
        several = selection.rank is None and len(run.record.ranks) > 1
        view = TextLogPrinter(session.output, several=several)
    for problem in mask_secrets(workspace, run):
        session.output.note(warning_text(problem, code="unmasked-secret"))
    unreachable: list[UnreachableNode] = []
    try:
        for batch in read_log(workspace, run, selection):
            if isinstance(batch, UnreachableNode):
                unreachable.append(batch)
            else:
                view.show(batch)
    finally:
        view.close()
    if isinstance(view, JsonLogPrinter):
        view.show_unreachable(unreachable)
    run = _refresh_followed(workspace, run, selection)
    if not run.record.ranks and format_ is OutputFormat.TEXT:
        detail = f": {run.record.error}" if run.record.error else "."
        state = "has not reached a node yet" if run.record.status.live else "never started"
        session.output.note(f"Run {run.record.number} ({run.record.id}) {state}{detail}")
    if format_ is OutputFormat.JSON and closes:
        emit.close("end of log", {"run": run.record.id, "status": run.record.status.value})
    return PrintedLog(run, report_unreachable(session, unreachable, "the log"))


def _refresh_followed(workspace: Workspace, run: JobRun, selection: LogSelection) -> JobRun:
    """Refresh the run; a followed run must be reachable, to report its end."""
    try:
        return refresh_run(workspace, run)
    except NodeError:
        if selection.follow:
            raise
        return run


def parse_time(flag: str, text: str | None) -> LogTime | None:
    """Parse ``10m`` (ago) or RFC 3339, by default UTC; UsageError names the flag."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is not None:
        return LogTime((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    try:
        return LogTime(duration(flag, text), ago=True)
    except UsageError:
        raise UsageError(
            f"{flag} {text!r}: not a time or duration",
            "Use for example 10m, 1d or 2026-01-31T12:00:00Z.",
        ) from None


def report_unreachable(
    session: CliSession, unreachable: Sequence[UnreachableNode], missing: str
) -> int:
    """Warn about unreachable nodes; return the exit code."""
    session.output.note(*unreachable_lines(unreachable, missing))
    return NodeUnreachable.exit_code if unreachable else 0
