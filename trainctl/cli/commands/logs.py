"""``trainctl logs`` and ``trainctl metrics``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
from trainctl.views.runs.status import run_labels
from trainctl.views.terminal.text import warning_text

if TYPE_CHECKING:
    from trainctl.base.points import RunPoints
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
    unreachable = _print_lines(session, workspace, [run], selection, format_)
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
        JsonEventPrinter(session.output).close(
            "end of log", {"run": run.record.id, "status": run.record.status.value}
        )
    return run, report_unreachable(session, unreachable, "the log")


def _print_lines(
    session: CliSession,
    workspace: Workspace,
    runs: Sequence[JobRun],
    selection: LogSelection,
    format_: OutputFormat,
) -> list[UnreachableNode]:
    """Print the lines of runs, merged; return the nodes that don't respond."""
    from trainctl.model.reports import UnreachableNode

    emit = JsonEventPrinter(session.output).several
    views: dict[str, TextLogPrinter | JsonLogPrinter] = {}
    if format_ is OutputFormat.JSON:
        for run in runs:
            views[run.record.id] = JsonLogPrinter(emit, run.job.address, run.record.id)
    else:
        several = selection.rank is None and any(len(run.record.ranks) > 1 for run in runs)
        labels = run_labels({run.record.id: run.matrix for run in runs})
        text = TextLogPrinter(session.output, several=several, labels=labels)
        views = {run.record.id: text for run in runs}
    for problem in dict.fromkeys(text for run in runs for text in mask_secrets(workspace, run)):
        session.output.note(warning_text(problem, code="unmasked-secret"))
    unreachable: list[UnreachableNode] = []

    def take(batch: LogBatch | UnreachableNode) -> None:
        if isinstance(batch, UnreachableNode):
            unreachable.append(batch)
        else:
            views[batch.run or runs[0].record.id].show(batch)

    try:
        read_log(workspace, runs, selection, take)
    finally:
        for view in dict.fromkeys(views.values()):
            view.close()
    first = views[runs[0].record.id]
    if isinstance(first, JsonLogPrinter):
        first.show_unreachable(unreachable)
    return unreachable


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
    """Print the logs of a job: the output of its commands.

    Of a matrix, the logs of the newest runs of all jobs, merged by time.
    """
    times = (parse_time("--since", since), parse_time("--until", until))
    selection = LogSelection(rank, *times, grep, tail, follow, prepare)
    with open_workspace(session) as workspace:
        job = lookup.job_address(address)
        runs = lookup.select_runs(lookup.with_unrecorded_runs(workspace), job, run)
        if len(runs) == 1:
            return print_logs(session, workspace, runs[0], selection, format_)[1]
        unreachable = _print_lines(session, workspace, runs, selection, format_)
        lookup.refresh_runs(workspace, runs)
        if format_ is OutputFormat.JSON:
            JsonEventPrinter(session.output).close("end of the logs", {"runs": len(runs)})
        return report_unreachable(session, unreachable, "the log")


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
    if (plot or keys) and format_ is not TableFormat.TEXT:
        raise UsageError(
            "--plot and --key can't be used with --format",
            "For all reported numbers, use trainctl results ADDRESS --format json.",
        )
    with open_workspace(session) as workspace:
        job = lookup.job_address(address)
        runs = lookup.select_runs(lookup.with_unrecorded_runs(workspace), job, run)
        if keys or len(runs) > 1:
            if format_ is not TableFormat.TEXT:
                raise UsageError(
                    f"{job} has {len(runs)} jobs, and --format shows one",
                    f"Use the name of a single job, for example {runs[0].job.address.shell_quoted}.",
                )
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
    from trainctl.views.runs.metrics import point_lines
    from trainctl.views.terminal.progress import show_updates

    labels = run_labels({run.record.id: run.matrix for run in runs})

    def view(found: Sequence[tuple[JobRun, RunPoints]], width: int | None) -> list[str]:
        by_label = {labels[run.record.id]: points for run, points in found}
        reported = [run.record.reported.get("results") or () for run, _ in found]
        known = {key for names in (*reported, *by_label.values()) for key in names}
        is_live = any(run.record.status.live for run, _ in found)
        wanted = keys or sorted(known)
        if is_live:  # it may report the others later
            wanted = [key for key in wanted if key in known]
        return point_lines(by_label, width, wanted, known) or ["Nothing reported yet."]

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
    )
    from trainctl.views.terminal.progress import show_updates

    if follow and format_ is TableFormat.JSON:
        for _, new in watch_samples(workspace, run, rank):
            session.output.json_lines(map(sample_json, new))
        return 0
    known: dict[str, ReportedPoints] = {}

    def view(shown: tuple[JobRun, Sequence[RankSample]], width: int | None) -> list[str]:
        current, samples = shown
        style = (
            session.output.style if width == session.output.width else session.output.error_style
        )
        record = current.record
        lines = metrics_lines(current.job.address, record, samples, style, time.time(), width)
        if plot:
            known.update(read_points(workspace, [current], None, known))
            lines += ["", *plot_lines(samples, known[record.key].points, width)]
        return lines

    if follow:
        show_updates(session.output, _all_samples(workspace, run, rank), view, None)
        return 0
    usage = samples_of(workspace, run, rank)
    if format_ is TableFormat.TEXT:
        for line in view((usage.run, usage.samples), session.output.width):
            session.output.print(line)
    else:
        form = metrics_json(run.job.address, usage.run.record, usage.samples, usage.unreachable)
        print_result(session.output, format_, form, (), metrics_csv(usage.samples))
    return report_unreachable(session, usage.unreachable, "the samples")


def _all_samples(
    workspace: Workspace, run: JobRun, rank: int | None
) -> Iterator[tuple[JobRun, Sequence[RankSample]]]:
    """Yield the run with all of its samples, when there are new ones."""
    from trainctl.operations.runs.status import watch_samples

    samples: list[RankSample] = []
    for current, new in watch_samples(workspace, run, rank):
        samples += new
        if new or not current.record.status.live:
            yield current, samples
