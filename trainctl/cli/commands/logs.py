"""``trainctl logs`` and ``trainctl metrics``."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from trainctl.cli import options
from trainctl.cli.options import OutputFormat, TableFormat, duration, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace, report_unreachable
from trainctl.errors import NodeError, UsageError
from trainctl.operations.runs import lookup
from trainctl.operations.runs.control import mask_secrets
from trainctl.operations.runs.logs import LogSelection, LogTime, read_log
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.workspace import Workspace
from trainctl.views.events import JsonEventPrinter
from trainctl.views.runs.logs import JsonLogPrinter, TextLogPrinter
from trainctl.views.terminal.text import warning_text

if TYPE_CHECKING:
    from trainctl.model.reports import LogBatch, RankSample, UnreachableNode


def print_logs(
    session: CliSession,
    workspace: Workspace,
    run: JobRun,
    selection: LogSelection,
    format_: OutputFormat,
    *,
    closes: bool = True,
) -> tuple[JobRun, int]:
    """Print the job's own lines, prefixed with the rank if there are several.

    With ``closes`` a summary is the last event. Return the run as it is now, and the exit code.
    """
    from trainctl.model.reports import UnreachableNode

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

    def take(batch: LogBatch | UnreachableNode) -> None:
        if isinstance(batch, UnreachableNode):
            unreachable.append(batch)
        else:
            view.show(batch)

    try:
        read_log(workspace, run, selection, take)
    finally:
        view.close()
    if isinstance(view, JsonLogPrinter):
        view.show_unreachable(unreachable)
    try:
        run = lookup.refresh_run(workspace, run)
    except NodeError:
        if selection.follow:  # a followed run must be reachable, to report its end
            raise
    if not run.record.ranks and format_ is OutputFormat.TEXT:
        detail = f": {run.record.error}" if run.record.error else "."
        state = "has not reached a node yet" if run.record.status.live else "never started"
        session.output.note(f"Run {run.record.number} ({run.record.id}) {state}{detail}")
    if format_ is OutputFormat.JSON and closes:
        emit.close("end of log", {"run": run.record.id, "status": run.record.status.value})
    return run, report_unreachable(session, unreachable, "the log")


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


def logs_command(
    session: CliSession,
    address: options.JobArgument,
    run: options.RunOption = None,
    rank: Annotated[int | None, option("--rank N", "Only this rank")] = None,
    since: Annotated[
        str | None,
        option(
            "--since TIME", "Show lines after a time or duration, e.g. 2026-01-31T12:00Z or 10m"
        ),
    ] = None,
    until: Annotated[
        str | None, option("--until TIME", "Show lines before a time or duration")
    ] = None,
    grep: Annotated[str | None, option("--grep REGEX", "Show matching lines")] = None,
    tail: Annotated[
        int | None,
        option("--tail N", "Show the last N lines of each rank; without N, same as --follow"),
    ] = None,
    follow: options.Follow = False,
    prepare: Annotated[
        bool, option("--prepare", "Show the log of prepare_commands instead")
    ] = False,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Print the logs of a job: the output of its commands."""
    times = (parse_time("--since", since), parse_time("--until", until))
    selection = LogSelection(rank, *times, grep, tail, follow, prepare)
    with open_workspace(session) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        return print_logs(session, workspace, job_run, selection, format_)[1]


def metrics_command(
    session: CliSession,
    address: options.JobArgument,
    run: options.RunOption = None,
    follow: Annotated[
        bool, option("-f, --follow, --watch", "Stream new output until the run ends")
    ] = False,
    rank: Annotated[int | None, option("--rank N", "Only this rank")] = None,
    plot: Annotated[bool, option("--plot", "Plot loss and usage over time")] = False,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Show GPU, CPU, memory and disk usage of a run; in JSON and CSV, its complete history."""
    from trainctl.operations.runs.status import samples_of
    from trainctl.views.runs.metrics import metrics_csv, metrics_json, plot_lines

    if follow and format_ is TableFormat.CSV:
        raise UsageError(
            "--follow can't be used with --format csv", "Use --format json for one sample per line."
        )
    if plot and (follow or format_ is not TableFormat.TEXT):
        raise UsageError("--plot can't be used with --follow or --format", "Use one of them.")
    with open_workspace(session) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        if follow:
            _follow(session, workspace, job_run, rank, as_json=format_ == "json")
            return 0
        usage = samples_of(workspace, job_run, rank)
    if format_ is TableFormat.TEXT:
        _print(session, usage.run, usage.samples)
        if plot:
            session.output.prose("", *plot_lines(usage.samples, session.output.width))
    else:
        form = metrics_json(job_run.job.address, usage.run.record, usage.samples, usage.unreachable)
        print_result(session.output, format_, form, (), metrics_csv(usage.samples))
    return report_unreachable(session, usage.unreachable, "the samples")


def _print(session: CliSession, run: JobRun, samples: list[RankSample]) -> None:
    for line in _metrics_lines(session, run, samples, live=False):
        session.output.print(line)


def _metrics_lines(
    session: CliSession, run: JobRun, samples: list[RankSample], *, live: bool
) -> list[str]:
    from shutil import get_terminal_size  # slow to import

    from trainctl.views.runs.metrics import metrics_lines

    output = session.output
    style = output.error_style if live else output.style
    width = get_terminal_size().columns if live else output.width
    return metrics_lines(run.job.address, run.record, samples, style, time.time(), width)


def _follow(
    session: CliSession, workspace: Workspace, run: JobRun, rank: int | None, *, as_json: bool
) -> None:
    """Print new samples: as JSON lines, a redrawn table, or repeated tables."""
    from trainctl.operations.runs.status import watch_samples
    from trainctl.views.runs.metrics import sample_json
    from trainctl.views.terminal.progress import LiveDisplay

    if as_json:
        for _, new in watch_samples(workspace, run, rank):
            session.output.json_lines(map(sample_json, new))
        return
    samples: list[RankSample] = []
    if not session.output.can_redraw:
        for current, new in watch_samples(workspace, run, rank):
            samples += new
            if new:
                _print(session, current, samples)
        return
    with LiveDisplay(session.output) as live:
        for current, new in watch_samples(workspace, run, rank):
            samples += new
            live.show(_metrics_lines(session, current, samples, live=True))
    _print(session, current, samples)
