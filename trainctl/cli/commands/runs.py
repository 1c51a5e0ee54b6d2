"""``trainctl status``, ``stop`` and ``download``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.cli import options
from trainctl.cli.options import OutputFormat, TableFormat, argument, duration, option, print_result
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import approve, open_workspace, query_all
from trainctl.errors import PartialApply, UsageError
from trainctl.ledger.leases import OpenLease, open_leases
from trainctl.model.address import Address
from trainctl.model.reports import JobStatus
from trainctl.operations.runs import lookup
from trainctl.operations.runs.checkpoints import download_code
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.runs.status import job_statuses, pending_jobs, watch_statuses
from trainctl.operations.survey.weights import full_cache_warnings
from trainctl.operations.workspace import Workspace
from trainctl.views.runs.status import (
    pending_job_lines,
    refresh_error_lines,
    status_json,
    status_lines,
    status_table,
    sweep_lines,
)
from trainctl.views.state import lease_rows, unfinished_lines
from trainctl.views.terminal.text import escape, pluralize, warning_text


def status_command(
    session: CliSession,
    address: Annotated[
        str | None, argument("ADDRESS", "Job or matrix, e.g. job.train [default: all jobs]")
    ] = None,
    run: options.RunOption = None,
    watch: Annotated[bool, option("--watch", "Refresh every 2 seconds until Ctrl-C")] = False,
    every: options.AllStates = False,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Show the status of jobs and their latest runs."""
    if every:
        if address is not None or watch:
            raise UsageError("--all can't be used with a job or --watch", "Use one of them.")
        states, code = query_all(session, lambda at: _jobs_of(at, job_statuses(at)))
        _show_states(session, states, format_)
        return code
    if run is not None and address is None:
        raise UsageError("--run needs a job", "Use trainctl status ADDRESS --run RUN.")
    job = lookup.job_address(address) if address is not None else None
    with open_workspace(session) as workspace:

        def is_single(statuses: Sequence[JobStatus]) -> bool:
            return job is not None and (run is not None or statuses[0].address == job)

        def view(statuses: Sequence[JobStatus], width: int | None) -> list[str]:
            if is_single(statuses):
                return status_lines(statuses[0], time.time(), named=run is not None)
            lines = _job_lines(_jobs_of(workspace, statuses, job), width, job)
            return [*lines, *refresh_error_lines(statuses)]

        if watch:
            from trainctl.views.terminal.progress import show_updates

            forms = partial(map, status_json) if format_ is OutputFormat.JSON else None
            show_updates(session.output, watch_statuses(workspace, job, run), view, forms)
        elif is_single(statuses := job_statuses(workspace, job, run)):
            lines = view(statuses, None)
            print_result(session.output, format_, status_json(statuses[0]), lines)
        else:
            _print_jobs(session, _jobs_of(workspace, statuses, job), format_, job)
        for text in full_cache_warnings(workspace):
            session.output.note(warning_text(text, code="cache-too-full"))
    return 0


def results_command(
    session: CliSession,
    addresses: Annotated[
        list[str] | None, argument("ADDRESS", "Jobs or matrices [default: all jobs]")
    ] = None,
    sort: Annotated[
        str | None,
        option("--sort KEY", "Lowest value first, or with KEY:max the highest", options.OUTPUT),
    ] = None,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """Compare what runs reported: the last value of each key, the lowest and the highest.

    Of a job all runs, of a matrix the newest run of each job.
    """
    from trainctl.operations.runs.results import results_of
    from trainctl.views.runs.results import results_csv, results_json, results_table, sort_results

    jobs = [lookup.job_address(address) for address in addresses or ()]
    with open_workspace(session) as workspace:
        results = results_of(workspace, jobs, with_points=format_ is TableFormat.JSON)
    if sort is not None:
        results = sort_results(results, sort)
    lines = results_table(results, session.output.width, sort)
    print_result(session.output, format_, results_json(results), lines, results_csv(results))
    return 0


class _Jobs(NamedTuple):
    statuses: Sequence[JobStatus]
    pending: Sequence[Address]
    leases: Sequence[OpenLease]

    def to_json(self, **more: str) -> dict[str, Any]:
        """Return the JSON of ``status``; ``more`` is added to each job."""
        return {
            "jobs": [{**status_json(status), **more} for status in self.statuses],
            "pending_jobs": [str(job) for job in self.pending],
            "leases": lease_rows(self.leases, time.time()),
        }


def _jobs_of(
    workspace: Workspace, statuses: Sequence[JobStatus], matrix: Address | None = None
) -> _Jobs:
    """Return all jobs, or those of one matrix, and all open leases."""
    pending = pending_jobs(workspace, statuses, matrix)
    leases = [] if matrix else open_leases(workspace.ledger.known())
    return _Jobs(statuses, pending, leases)


def _show_states(session: CliSession, states: Mapping[str, _Jobs], format_: OutputFormat) -> None:
    """Print the jobs of each state."""
    output = session.output
    if format_ is OutputFormat.JSON:
        forms = [_Jobs((), (), ()).to_json()]
        forms += [jobs.to_json(state=url) for url, jobs in states.items()]
        output.json({name: [row for form in forms for row in form[name]] for name in forms[0]})
        return
    found = {url: jobs for url, jobs in states.items() if any(jobs)}
    for number, (url, jobs) in enumerate(found.items()):
        output.prose(*([""] if number else []), output.style(escape(url), "bold"))
        _print_jobs(session, jobs, format_)
    if not found:
        output.prose("No jobs have run yet.")


def _print_jobs(
    session: CliSession, jobs: _Jobs, format_: OutputFormat, matrix: Address | None = None
) -> None:
    """Print all jobs, or those of one matrix, and the pending jobs."""
    output = session.output
    if format_ is OutputFormat.JSON:
        output.json(jobs.to_json())
        return
    output.prose(*_job_lines(jobs, output.width, matrix))
    output.note(*refresh_error_lines(jobs.statuses))


def _job_lines(jobs: _Jobs, width: int | None, matrix: Address | None) -> list[str]:
    statuses = jobs.statuses
    lines = sweep_lines(statuses, time.time(), width) if matrix else status_table(statuses, width)
    pending = pending_job_lines(jobs.pending, statuses)
    return [*lines, *pending, *unfinished_lines(jobs.leases)]


def stop_command(
    session: CliSession,
    address: Annotated[
        str | None, argument("ADDRESS", "Job, or matrix to stop all of its runs")
    ] = None,
    run: options.RunOption = None,
    grace: Annotated[str, option("--grace DURATION", "Grace period")] = "30s",
    every: Annotated[bool, option("--all", "Stop all live runs")] = False,
    auto_approve: options.AutoApprove = False,
) -> int:
    """Stop a run. Sends SIGTERM, then SIGKILL after the grace period."""
    from trainctl.operations.runs.control import stop_run
    from trainctl.views.terminal.progress import ProgressDisplay

    if every == (address is not None) or (every and run):
        raise UsageError(
            "missing ADDRESS or --all", "Use trainctl stop ADDRESS or trainctl stop --all."
        )
    seconds = duration("--grace", grace)
    with open_workspace(session) as workspace:
        job = lookup.job_address(address) if address is not None else None
        state = lookup.with_unrecorded_runs(workspace)
        if job is None or (run is None and lookup.jobs_of_matrix(state.resources, job)):
            runs = [*lookup.newest_runs(state, job)]
            return _stop_runs(session, workspace, runs, job, seconds, approved=auto_approve)
        job_run = lookup.find_run(state, job, run)
        with ProgressDisplay(session.output) as progress:
            ended = stop_run(workspace, job_run, seconds, progress.listen)
    before = "" if job_run.record.status.live else " already"
    session.output.print(_stop_line(ended, f"is{before} {ended.record.status.words}"))
    return 0


def _stop_runs(
    session: CliSession,
    workspace: Workspace,
    runs: Sequence[JobRun],
    matrix: Address | None,
    grace: float,
    *,
    approved: bool,
) -> int:
    """Stop the live runs; those of a matrix once they are approved."""
    from trainctl.operations.runs.control import stop_runs
    from trainctl.views.terminal.progress import ProgressDisplay

    live = [run for run, _ in lookup.refresh_runs(workspace, runs) if run.record.status.live]
    if not live:
        session.output.print(f"{matrix}: no live runs" if matrix else "no live runs")
        return 0
    if matrix and not approved:
        if not session.stdin.isatty():
            raise UsageError(
                f"{matrix} has {pluralize(len(runs), 'job')} with {pluralize(len(live), 'live run')}",
                "Use --auto-approve to stop all of them, "
                f"or name a single job, e.g. {live[0].job.address.shell_quoted}.",
            )
        if not approve(session, f"Do you want to stop {pluralize(len(live), 'run')} of {matrix}?"):
            session.output.note("Nothing was changed.")
            return 1
    with ProgressDisplay(session.output) as progress:
        ended = stop_runs(workspace, live, grace, progress.listen)
    for run, problem in ended:
        status_ = run.record.status.words
        outcome = f"could not be stopped: {problem.summary}" if problem else f"is {status_}"
        session.output.print(_stop_line(run, outcome))
    return PartialApply.exit_code if any(problem for _, problem in ended) else 0


def _stop_line(run: JobRun, outcome: str) -> str:
    return f"{run.job.address}: run {run.record.number} ({run.record.id}) {outcome}"


def download_command(
    session: CliSession,
    address: options.JobArgument,
    run: options.RunOption = None,
    target: options.OutputDirectory = Path(),
    archive: Annotated[bool, option("--no-unzip", "Save the archive PROJECT_JOB_RUN.tar")] = False,
) -> int:
    """Download the source code used by a run to the directory PROJECT_JOB_RUN."""
    with open_workspace(session) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        session.output.print(str(download_code(workspace, job_run, target, archive=archive)))
    return 0
