"""Tables of jobs: all jobs, or a matrix by its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from trainctl.base.checkpoints.layout import recency_key
from trainctl.base.units import format_duration
from trainctl.model.address import Address
from trainctl.model.reports import Checkpoint, JobStatus
from trainctl.model.run import RunStatus
from trainctl.views.runs.training import progress_text
from trainctl.views.terminal.text import display_width, escape, format_minute, table, warning_text

NARROWEST_STATE = 20
"""Columns for a status and the start of its reason."""
_NAMED = 6


def status_table(statuses: Sequence[JobStatus], width: int | None = None) -> list[str]:
    """Return a table of jobs, with one line per matrix."""
    if not statuses:
        return ["No jobs have run yet."]
    groups: dict[Address, list[JobStatus]] = {}
    for status in statuses:
        groups.setdefault(
            status.address if status.address.key is None else status.address.group, []
        ).append(status)
    rows = [
        _row(group[0]) if address == group[0].address else _matrix_row(address, group)
        for address, group in groups.items()
    ]
    headers = ["JOB", "RUN", "STATUS", "NODE", "STARTED (UTC)", "RAN", "CKPTS"]
    sweeps = [group for address, group in groups.items() if address != group[0].address]
    counts = [display_width(counts_by_state(group)) for group in sweeps]
    narrowest = {"STATUS": max([NARROWEST_STATE, *counts])}
    return table(
        headers,
        rows,
        width=width,
        shrinks=frozenset({"NODE", "STATUS"}),
        narrowest=narrowest,
        drops=("STARTED (UTC)", "NODE"),
    )


def pending_job_lines(jobs: Sequence[Address], statuses: Iterable[JobStatus]) -> list[str]:
    """Return approved jobs that wait for a later apply.

    ``reconcile`` does not replace live runs, as it can't ask for permission.
    """
    live = {status.address for status in statuses if status.run.status.live}
    replacing = [job for job in jobs if job in live]
    waiting = [job for job in jobs if job not in live]
    lines = []
    if waiting:
        lines += [
            "",
            f"Approved, not started yet {_job_list(waiting)}",
            "They start with a later apply, or with: trainctl reconcile. To see what blocks them: trainctl plan",
        ]
    if replacing:
        lines += [
            "",
            f"Approved to replace a live run {_job_list(replacing)}",
            "To start them, run: trainctl apply --stop-running. To see what blocks them: trainctl plan",
        ]
    return lines


def _job_list(jobs: Sequence[Address]) -> str:
    names = ", ".join(map(str, jobs[:_NAMED])) + (", …" if len(jobs) > _NAMED else "")
    return f"({len(jobs)}): {names}"


def refresh_error_lines(statuses: Iterable[JobStatus]) -> list[str]:
    """Return a warning for each refresh error, with its jobs."""
    jobs: dict[str, list[str]] = {}
    for status in statuses:
        if status.refresh_error:
            jobs.setdefault(status.refresh_error, []).append(str(status.address))
    return [
        warning_text(
            f"{escape(error)}: last known status of {', '.join(names)}", code="node-unreachable"
        )
        for error, names in jobs.items()
    ]


def _row(status: JobStatus) -> list[str]:
    run = status.run
    return [
        str(status.address),
        f"{run.number} ({run.id})",
        state_text(status),
        ", ".join(dict.fromkeys(rank.place for rank in run.ranks)),
        format_minute(run.started_at),
        format_duration(run.phases["running"]) if "running" in run.phases else "",
        str(len(status.checkpoints)),
    ]


def _matrix_row(address: Address, statuses: Sequence[JobStatus]) -> list[str]:
    nodes = sorted({rank.place for status in statuses for rank in status.run.ranks})
    started = [status.run.started_at for status in statuses if status.run.started_at is not None]
    return [
        f"{address} ({len(statuses)})",
        "",
        counts_by_state(statuses),
        ", ".join(nodes),
        format_minute(min(started, default=None)),
        "",
        str(sum(len(status.checkpoints) for status in statuses)),
    ]


def state_text(status: JobStatus) -> str:
    """Format a status: ``completed``, ``pending: waits for 2 of 4 GPUs``."""
    run = status.run
    reason, progress = run.now.get("waiting"), run.now.get("progress")
    waiting = f": {escape(reason)}" if reason else ""
    if progress and run.status.live and not reason:
        waiting = f": {progress_text(progress, bar=False)}"
    apply = " (apply interrupted)" if status.apply and status.apply.interrupted else ""
    return run.words + waiting + apply + (" (last known)" if status.refresh_error else "")


def counts_by_state(statuses: Iterable[JobStatus]) -> str:
    """Count statuses: ``4 running, 88 pending, 4 completed``."""
    counts = Counter(status.run.status for status in statuses)
    return ", ".join(f"{counts[status]} {status.words}" for status in _LIVE_FIRST if counts[status])


_LIVE_FIRST = (
    *(RunStatus.RUNNING, RunStatus.DEPLOYING, RunStatus.CREATED, RunStatus.PENDING),
    *(RunStatus.FAILED, RunStatus.DEPLOY_FAILED, RunStatus.LOST, RunStatus.STOPPED),
    RunStatus.COMPLETED,
)


_REASONS = 5
"""How many reasons of failed runs are listed."""


def sweep_lines(statuses: Sequence[JobStatus], now: float, width: int | None = None) -> list[str]:
    """Return a table of a matrix by its varying values, and the counts."""
    if not statuses:
        return ["No job of the matrix has run yet."]
    values = [dict(status.matrix) for status in statuses]
    all_names = list(dict.fromkeys(name for value in values for name in value))
    names = [name for name in all_names if len({value.get(name) for value in values}) > 1]
    shared = [f"{name}={values[0][name]}" for name in all_names if name not in names]
    ordered = sorted(
        statuses, key=lambda status: [_sort_key(dict(status.matrix).get(n, "")) for n in names]
    )
    rows = [
        [
            *(escape(dict(status.matrix).get(name, "")) for name in names),
            state_text(status),
            f"{status.run.number} ({status.run.id})",
            _run_time(status, now),
            _newest(status.checkpoints),
        ]
        for status in ordered
    ]
    headers = [*(escape(name) for name in names), "STATUS", "RUN", "RAN", "CHECKPOINT"]
    narrowest = {"STATUS": NARROWEST_STATE}
    lines = table(
        headers,
        rows,
        width=width,
        shrinks=frozenset(narrowest),
        narrowest=narrowest,
        drops=("RUN", "RAN"),
    )
    head = [f"Same for all: {escape(', '.join(shared))}", ""] if shared else []
    group = statuses[0].address.group
    return [*head, *lines, "", f"{group}: {counts_by_state(statuses)}", *_reasons(ordered)]


def _reasons(statuses: Sequence[JobStatus]) -> list[str]:
    """Return the most frequent reasons of failed runs."""
    counts = Counter(
        (status.run.status.words, status.run.error.splitlines()[0])
        for status in statuses
        if status.run.error
    )
    lines = [
        f"  {state}{f' ({count})' if count > 1 else ''}: {escape(error)}"
        for (state, error), count in counts.most_common(_REASONS)
    ]
    more = len(counts) - _REASONS
    return [*lines, *([f"  … and {more} more reasons: trainctl status JOB"] if more > 0 else [])]


def _sort_key(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def _run_time(status: JobStatus, now: float) -> str:
    """Format how long the run has been running."""
    if "running" in status.run.phases:
        return format_duration(status.run.phases["running"])
    if status.run.started_at is None or not status.run.status.live:
        return ""
    return format_duration(max(0.0, now - status.run.started_at))


def _newest(checkpoints: Sequence[Checkpoint]) -> str:
    """Format the newest complete checkpoint: its step, or its name."""
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not complete:
        return ""
    newest = max(complete, key=lambda checkpoint: recency_key(asdict(checkpoint)))
    return escape(newest.name) if newest.step is None else f"step {newest.step}"
