"""``trainctl logs`` and ``trainctl metrics``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from trainctl.cli import options
from trainctl.cli.options import OutputFormat, TableFormat, duration, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace, report_unreachable
from trainctl.errors import UsageError
from trainctl.operations.runs import lookup
from trainctl.operations.runs.control import mask_secrets
from trainctl.operations.runs.logs import LogSelection, LogTime, read_log
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.workspace import Workspace
from trainctl.views.events import JsonEventPrinter
from trainctl.views.runs.logs import JsonLogPrinter, TextLogPrinter
from trainctl.views.terminal.text import escape, warning_text

if TYPE_CHECKING:
    from trainctl.base.points import RunPoints
    from trainctl.model.reports import LogBatch
    from trainctl.operations.runs.status import RunSamples


def print_logs(
    session: CliSession,
    workspace: Workspace,
    runs: Sequence[JobRun],
    selection: LogSelection,
    format_: OutputFormat,
) -> tuple[list[JobRun], int]:
    """Print the own lines of jobs, several runs merged, prefixed with the run and the rank if there are several.

    In JSON, a summary is the last event. Return the runs as they are now, and the exit code.
    """
    from trainctl.model.reports import UnreachableNode

    emit = JsonEventPrinter(session.output)
    printer: TextLogPrinter | JsonLogPrinter
    if format_ is OutputFormat.JSON:
        printer = JsonLogPrinter(emit.several, {run.record.id: run.job.address for run in runs})
    else:
        has_ranks = selection.rank is None and any(len(run.record.ranks) > 1 for run in runs)
        rank = "[rank {0.rank}] " if has_ranks else ""
        names = {run.record.id: run.job.address.key or run.job.address.name for run in runs}
        label = "" if len(runs) == 1 else "[{}] "
        printer = TextLogPrinter(
            session.output,
            lambda batch: label.format(escape(names[batch.run])) + rank.format(batch),
        )
    for problem in dict.fromkeys(text for run in runs for text in mask_secrets(workspace, run)):
        session.output.note(warning_text(problem, code="unmasked-secret"))
    unreachable: list[UnreachableNode] = []

    def take(batch: LogBatch | UnreachableNode) -> None:
        if isinstance(batch, UnreachableNode):
            unreachable.append(batch)
        else:
            printer.show(batch)

    try:
        read_log(workspace, runs, selection, take)
    finally:
        printer.close()
    if isinstance(printer, JsonLogPrinter):
        printer.show_unreachable(unreachable)
    current = []
    for run, error in lookup.refresh_runs(workspace, runs):
        if error is not None and selection.follow:  # to report the end of a followed run
            raise error
        if not run.record.ranks and format_ is OutputFormat.TEXT:
            detail = f": {run.record.error}" if run.record.error else "."
            state = "has not reached a node yet" if run.record.status.live else "never started"
            session.output.note(f"Run {run.record.number} ({run.record.id}) {state}{detail}")
        current.append(run)
    if format_ is OutputFormat.JSON:
        one = {"run": current[0].record.id, "status": current[0].record.status.value}
        emit.close("end of log", one if len(current) == 1 else {"runs": len(current)})
    return current, report_unreachable(session, unreachable, "the log")


def parse_time(flag: str, text: str | None) -> LogTime | None:
    """Parse ``10m`` (ago) or RFC 3339, by default UTC; UsageError names the flag."""
    if text is None:
        return None
    with suppress(ValueError):
        when = datetime.fromisoformat(text)
        return LogTime((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    with suppress(UsageError):
        return LogTime(duration(flag, text), ago=True)
    raise UsageError(
        f"{flag} {text!r}: not a time or duration",
        "Use for example 10m, 1d or 2026-01-31T12:00:00Z.",
    )


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
    """Print the logs of a job: the output of its commands.

    Of a matrix, the logs of the newest runs of all jobs, merged by time.
    """
    times = (parse_time("--since", since), parse_time("--until", until))
    selection = LogSelection(rank, *times, grep, tail, follow, prepare)
    with open_workspace(session) as workspace:
        job = lookup.job_address(address)
        runs = lookup.select_runs(lookup.with_unrecorded_runs(workspace), job, run)
        return print_logs(session, workspace, runs, selection, format_)[1]


def metrics_command(
    session: CliSession,
    address: options.JobArgument,
    run: options.RunOption = None,
    follow: Annotated[
        bool, option("-f, --follow, --watch", "Stream new output until the run ends")
    ] = False,
    rank: Annotated[int | None, option("--rank N", "Only this rank")] = None,
    plot: Annotated[bool, option("--plot", "Plot reported numbers and usage over time")] = False,
    keys: Annotated[
        list[str] | None, option("--key KEY", "Plot only this reported number (repeatable)")
    ] = None,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Show GPU, CPU, memory and disk usage of a run; in JSON and CSV, its complete history.

    Of a matrix, plot what the newest run of each job has reported.
    """
    if follow and format_ is TableFormat.CSV:
        raise UsageError(
            "--follow can't be used with --format csv", "Use --format json for one sample per line."
        )
    with open_workspace(session) as workspace:
        job = lookup.job_address(address)
        runs = lookup.select_runs(lookup.with_unrecorded_runs(workspace), job, run)
        if format_ is not TableFormat.TEXT and (plot or keys or len(runs) > 1):
            raise UsageError(
                "--format needs a single job, without --plot and --key",
                "For all reported numbers, use trainctl results ADDRESS --format json.",
            )
        if keys or len(runs) > 1:
            _plot_points(session, workspace, runs, keys, follow=follow)
            return 0
        return _show_usage(session, workspace, runs[0], rank, format_, follow=follow, plot=plot)


def _plot_points(
    session: CliSession,
    workspace: Workspace,
    runs: Sequence[JobRun],
    keys: list[str] | None,
    *,
    follow: bool,
) -> None:
    """Plot what runs have reported, redrawn while they live."""
    from trainctl.operations.runs.status import watch_points
    from trainctl.views.runs.metrics import plot_lines
    from trainctl.views.runs.results import require_key
    from trainctl.views.terminal.progress import show_updates

    def view(found: Sequence[tuple[JobRun, RunPoints]], width: int | None) -> list[str]:
        series: dict[str, dict[str, Sequence[float]]] = {}
        for run, points in found:
            label = run.job.address.key or run.record.id
            for key in run.record.reported.get("results") or ():
                series.setdefault(key, {})
            for key, of_key in points.items():
                series.setdefault(key, {})[label] = of_key.columns()[0]
        if not any(run.record.status.live for run, _ in found):  # it may report others later
            for key in keys or ():
                require_key(key, series)
        shown = {key: series[key] for key in keys or sorted(series) if series.get(key)}
        return plot_lines(shown, width) or ["Nothing reported yet."]

    show_updates(session.output, watch_points(workspace, runs, keys, follow=follow), view, None)


def _show_usage(
    session: CliSession,
    workspace: Workspace,
    run: JobRun,
    rank: int | None,
    format_: TableFormat,
    *,
    follow: bool,
    plot: bool,
) -> int:
    """Print samples of a run; with ``plot`` also its points and samples over time."""
    from trainctl.operations.runs.points import ReportedPoints, read_points
    from trainctl.operations.runs.status import samples_of, watch_samples
    from trainctl.views.runs.metrics import (
        metrics_csv,
        metrics_json,
        metrics_lines,
        plot_lines,
        sample_json,
        usage_series,
    )
    from trainctl.views.terminal.progress import show_updates

    known: dict[str, ReportedPoints] = {}

    def view(usage: RunSamples, width: int | None) -> list[str]:
        job, record = usage.run.job.address, usage.run.record
        lines = metrics_lines(job, record, usage.samples, session.output.style, time.time(), width)
        if plot:
            known.update(read_points(workspace, [usage.run], None, known))
            points = known[record.key].points
            reported = {key: of_key.columns()[0] for key, of_key in points.items()}
            series = {"reported": reported} if reported else {}
            lines += ["", *plot_lines({**series, **usage_series(usage.samples)}, width)]
        return lines

    if follow:
        forms = None if format_ is TableFormat.TEXT else lambda usage: map(sample_json, usage.new)
        show_updates(session.output, watch_samples(workspace, run, rank), view, forms)
        return 0
    usage = samples_of(workspace, run, rank)
    if format_ is TableFormat.TEXT:
        for line in view(usage, session.output.width):
            session.output.print(line)
    else:
        form = metrics_json(run.job.address, usage.run.record, usage.samples, usage.unreachable)
        print_result(session.output, format_, form, (), metrics_csv(usage.samples))
    return report_unreachable(session, usage.unreachable, "the samples")
