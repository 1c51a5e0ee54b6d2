"""Tables of jobs: all of them, or the jobs of a matrix by its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from trainctl.base.checkpoints.ranking import recency_key
from trainctl.base.units import format_duration
from trainctl.model.address import Address
from trainctl.model.reports import Checkpoint, JobStatus
from trainctl.model.run import RunStatus
from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import display_width, format_minute, warning_text

NARROWEST_STATE = 20
"""Columns for a state and some of what it waits for."""
_NAMED = 6


def status_table(statuses: Sequence[JobStatus], width: int | None = None) -> list[str]:
    """All jobs, a line each, and one for all jobs of a matrix; in so many columns if they must fit."""
    if not statuses:
        return ["No jobs have run yet."]
    groups: dict[Address, list[JobStatus]] = {}
    for status in statuses:
        groups.setdefault(
            status.address if status.address.key is None else status.address.group, []
        ).append(status)
    rows = [
        _row(ones[0]) if address == ones[0].address else _matrix_row(address, ones)
        for address, ones in groups.items()
    ]
    headers = ["JOB", "RUN", "STATUS", "NODE", "STARTED (UTC)", "RAN", "CKPTS"]
    sweeps = [ones for address, ones in groups.items() if address != ones[0].address]
    counts = [display_width(counts_by_state(ones)) for ones in sweeps]
    narrowest = {"STATUS": max([NARROWEST_STATE, *counts])}
    return table(
        headers,
        rows,
        width=width,
        shrinks=frozenset({"NODE", "STATUS"}),
        narrowest=narrowest,
        drops=("STARTED (UTC)", "NODE"),
    )


def pending_job_lines(jobs: Sequence[Address], found: Iterable[JobStatus]) -> list[str]:
    """Which runs were approved and wait for a later apply, what carries them on, and where the reason stands; ``found`` as they stand now.

    ``reconcile`` does not resume what would end a live run, as it can't ask.
    """
    live = {one.address for one in found if one.run.status.live}
    held = [job for job in jobs if job in live]
    free = [job for job in jobs if job not in live]
    lines = []
    if free:
        lines += [
            "",
            f"Approved, not started yet {_job_list(free)}",
            "They start with a later apply, or with: trainctl reconcile. To see what blocks them: trainctl plan",
        ]
    if held:
        lines += [
            "",
            f"Approved to replace a live run {_job_list(held)}",
            "To start them, run: trainctl apply --stop-running. To see what blocks them: trainctl plan",
        ]
    return lines


def _job_list(jobs: Sequence[Address]) -> str:
    names = ", ".join(map(str, jobs[:_NAMED])) + (", …" if len(jobs) > _NAMED else "")
    return f"({len(jobs)}): {names}"


def refresh_error_lines(found: Iterable[JobStatus]) -> list[str]:
    """Of each reason why nodes could not be asked a warning, with the jobs that are as they were last seen."""
    jobs: dict[str, list[str]] = {}
    for one in found:
        if one.refresh_error:
            jobs.setdefault(one.refresh_error, []).append(str(one.address))
    return [
        warning_text(
            f"{escape(why)}: last known status of {', '.join(names)}", code="node-unreachable"
        )
        for why, names in jobs.items()
    ]


def _row(one: JobStatus) -> list[str]:
    run = one.run
    return [
        str(one.address),
        f"{run.number} ({run.id})",
        state_text(one),
        ", ".join(rank.node for rank in run.ranks),
        format_minute(run.started_at),
        format_duration(run.phases["running"]) if "running" in run.phases else "",
        str(len(one.checkpoints)),
    ]


def _matrix_row(address: Address, ones: Sequence[JobStatus]) -> list[str]:
    nodes = sorted({rank.node for one in ones for rank in one.run.ranks})
    started = [one.run.started_at for one in ones if one.run.started_at is not None]
    return [
        f"{address} ({len(ones)})",
        "",
        counts_by_state(ones),
        ", ".join(nodes),
        format_minute(min(started, default=None)),
        "",
        str(sum(len(one.checkpoints) for one in ones)),
    ]


def state_text(one: JobStatus) -> str:
    """``completed``; ``pending: waits for 2 of 4 GPUs``."""
    waiting = f": {escape(one.run.waiting)}" if one.run.waiting else ""
    apply = " (apply interrupted)" if one.apply and one.apply.interrupted else ""
    return one.run.status.words + waiting + apply + (" (last known)" if one.refresh_error else "")


def counts_by_state(ones: Iterable[JobStatus]) -> str:
    """``4 running, 88 pending, 4 completed``."""
    counts = Counter(one.run.status for one in ones)
    return ", ".join(f"{counts[status]} {status.words}" for status in _LIVE_FIRST if counts[status])


_LIVE_FIRST = (
    *(RunStatus.RUNNING, RunStatus.DEPLOYING, RunStatus.CREATED, RunStatus.PENDING),
    *(RunStatus.FAILED, RunStatus.DEPLOY_FAILED, RunStatus.LOST, RunStatus.STOPPED),
    RunStatus.COMPLETED,
)


_REASONS = 5
"""How many reasons of failed runs are listed."""


def sweep_lines(statuses: Sequence[JobStatus], now: float, width: int | None = None) -> list[str]:
    """What all jobs of a matrix have in common, each by its other values, in numeric order where they are numbers, and the counts by state."""
    if not statuses:
        return ["No job of the matrix has run yet."]
    values = [dict(status.matrix) for status in statuses]
    all_names = list(dict.fromkeys(name for value in values for name in value))
    names = [name for name in all_names if len({value.get(name) for value in values}) > 1]
    shared = [f"{name}={values[0][name]}" for name in all_names if name not in names]
    ordered = sorted(
        statuses, key=lambda one: [_sort_key(dict(one.matrix).get(n, "")) for n in names]
    )
    rows = [
        [
            *(escape(dict(one.matrix).get(name, "")) for name in names),
            state_text(one),
            f"{one.run.number} ({one.run.id})",
            _run_time(one, now),
            _newest(one.checkpoints),
        ]
        for one in ordered
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
    """Why runs failed, each reason once with how often, the most frequent first: a row has no room for it."""
    said = Counter(
        (status.run.status.words, status.run.error.splitlines()[0])
        for status in statuses
        if status.run.error
    )
    told = [
        f"  {state}{f' ({count})' if count > 1 else ''}: {escape(error)}"
        for (state, error), count in said.most_common(_REASONS)
    ]
    more = len(said) - _REASONS
    return [*told, *([f"  … and {more} more reasons: trainctl status JOB"] if more > 0 else [])]


def _sort_key(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def _run_time(one: JobStatus, now: float) -> str:
    """How long it ran, or has been running by this machine's clock."""
    if "running" in one.run.phases:
        return format_duration(one.run.phases["running"])
    if one.run.started_at is None or not one.run.status.live:
        return ""
    return format_duration(max(0.0, now - one.run.started_at))


def _newest(checkpoints: Sequence[Checkpoint]) -> str:
    """The newest whole checkpoint: its step, or its name where that has none."""
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not whole:
        return ""
    newest = max(whole, key=lambda one: recency_key(asdict(one)))
    return escape(newest.name) if newest.step is None else f"step {newest.step}"
