"""Format the status of jobs: one job, all jobs, or a matrix by its values."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.lazy_dataclass import asdict
from trainctl.base.protocol.runs import ResultPoint, RunDetails
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.address import Address
from trainctl.model.delivery import THROUGH_CLIENT, DeliveryRecord, MirroringRecord
from trainctl.model.json_codec import to_json
from trainctl.model.reports import Checkpoint, JobStatus
from trainctl.model.run import LIVE_FIRST, RunRecord, RunStatus
from trainctl.views.terminal.text import (
    display_width,
    escape,
    format_minute,
    format_timestamp,
    second,
    table,
    warning_text,
)

_CHECKPOINTS = 3
_BAR = 20
_RESULTS = 6
"""How many keys are shown."""
_PHASES = ("mirroring", "provisioning", "delivering", "running")
_RANK_KEYS = ("rank", "node", "status", "exit_code", "error", "workdir")


def status_json(status: JobStatus) -> dict[str, Any]:
    """Return the JSON of ``status``."""
    from trainctl.views.runs.checkpoints import checkpoint_json

    run = status.run
    recorded, now = run.to_json(), run.now
    details: dict[str, Any] = {**dict.fromkeys(RunDetails.__annotations__), **run.reported}
    session, sync = details.pop("session"), details.pop("sync") or {}
    loaded, progress = details.pop("loaded"), now.get("progress")
    ranks = [
        {**to_json(rank), "node": rank.place, "workdir": status.workdir.get(rank.rank)}
        for rank in run.ranks
    ]
    times = ("created_at", "started_at", "ended_at")
    return {
        "address": str(status.address),
        "run": run.id,
        **{name: recorded[name] for name in ("number", "status", "error", "image_digest")},
        "refresh_error": status.refresh_error or None,
        "waiting": now.get("waiting"),
        "session": session and {**session, "until": format_timestamp(session["until"])},
        "progress": progress
        and {**progress, "updated_at": format_timestamp(progress["updated_at"])},
        "matrix": dict(status.matrix) or None,
        "ranks": [{name: rank[name] for name in _RANK_KEYS} for rank in ranks],
        **{name: format_timestamp(recorded[name]) for name in times},
        "phases": {name: run.phases.get(name, 0.0) for name in _PHASES},
        "mirrored": [
            {"weights": row["weights"], **MirroringRecord.from_json(row).to_json()}
            for row in run.mirrored
        ],
        "deliveries": [DeliveryRecord.from_json(row).to_json() for row in run.deliveries],
        "checkpoint_sync_status": sync.get("state"),
        "checkpoint_sync_error": sync.get("error"),
        "loaded_checkpoints": loaded or [],
        "forecast": dict(status.forecast) or None,
        "deadline_at": format_timestamp(status.deadline),
        **details,
        "retries": details["retries"] or 0,
        "rerun_of": run.rerun_of,
        "commit": run.commit,
        "checkpoints": [checkpoint_json(checkpoint) for checkpoint in status.checkpoints],
        "apply": status.apply
        and {**asdict(status.apply), "since": format_timestamp(status.apply.since)},
    }


def status_lines(status: JobStatus, now: float, *, named: bool = False) -> list[str]:
    """Return the status lines of a job; ``named`` if the run was given."""
    run = status.run
    lines = [f"{status.address}  run {run.number} ({run.id})  {run.words}"]
    if status.refresh_error:
        lines.append(f"  last known status: {status.refresh_error}")
    rows = [*status_rows(status, now), *_checkpoints(status, named=named)]
    return [*lines, *(f"  {word:<13} {text}" for word, text in rows)]


def status_rows(status: JobStatus, now: float) -> Iterator[tuple[str, str]]:
    """Yield labels and facts of a run, except its checkpoints."""
    run = status.run
    yield from _remarks(status)
    for rank in run.ranks:
        parts = [
            *([rank.status.words] if len(run.ranks) > 1 else []),
            *([] if rank.exit_code is None else [f"exit code {rank.exit_code}"]),
            *([escape(rank.error)] if rank.error else []),
        ]
        yield f"rank {rank.rank}", ", ".join([rank.place, *parts])
        if rank.rank in status.workdir:
            yield "files", escape(status.workdir[rank.rank])
    times = (("created", run.created_at), ("started", run.started_at), ("ended", run.ended_at))
    yield from ((word, f"{second(when)} UTC") for word, when in times if format_timestamp(when))
    yield from (*_evaluations(status), *_results(status), *_phases(status, now), *_transfers(run))


def _remarks(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield labelled remarks about a run, its session and its apply."""
    run, apply = status.run, status.apply
    reported, progress = run.reported, run.now.get("progress")
    sync = reported.get("sync", {})
    stopping = run.stop_requested and run.status.live
    remarks = [
        ("error", run.error),
        (
            "stop",
            "requested; not all nodes have reported the end of the run" if stopping else None,
        ),
        ("retries", str(reported.get("retries") or "")),
        ("repeats", f"run {run.rerun_of}" if run.rerun_of else None),
        ("reused from", " in ".join((run.reused_from or {}).values())),
        (run.status.words, run.now.get("waiting")),
        ("image", run.image_digest),
        ("commit", run.commit),
        ("progress", progress_text(progress) if progress else None),
        *(
            ("started with", ", ".join([f"{row['run']}: {row['name']}", *row.get("pointers", ())]))
            for row in reported.get("loaded") or ()
        ),
        ("upload", f"{sync['state'].lower()}: {sync['error']}" if sync.get("error") else None),
    ]
    yield from ((word, escape(text)) for word, text in remarks if text)
    session = reported.get("session")
    if session and run.status.live:
        code, job = session["exit_code"], status.address.shell_quoted
        ended = "commands completed" if code == 0 else f"commands failed with exit code {code}"
        yield "session", f"{ended}; keeps its place until {second(session['until'])} UTC"
        yield "to enter", f"trainctl ssh {job}"
        yield "to extend", f"trainctl session extend {job}"
        yield "to end", f"trainctl stop {job}"
    if apply:
        rest = ": interrupted; the next apply resumes it" if apply.interrupted else ""
        yield "apply", f"of {escape(apply.actor)}, since {second(apply.since)} UTC{rest}"


def _evaluations(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield the counts of evaluations by status, and those that did not complete."""
    rows = status.run.reported.get("evaluations") or ()
    counts = Counter(row["status"] for row in rows)
    if counts:
        yield "evaluations", ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    bad = [row for row in rows if row["status"] in ("failed", "interrupted")]
    for row in bad[-_CHECKPOINTS:]:
        yield row["status"], escape(f"{row['name']}: {row['error']}")


def _results(status: JobStatus) -> Iterator[tuple[str, str]]:
    """Yield the last value of each key that an ended run reported."""
    run = status.run
    results = {} if run.status.live else run.reported.get("results") or {}
    for number, (name, result) in enumerate([*results.items()][:_RESULTS]):
        yield "" if number else "results", escape(f"{name} {result_text(result['last'])}")
    if len(results) > _RESULTS:
        job = status.address.shell_quoted
        yield "", f"… and {len(results) - _RESULTS} more: trainctl results {job}"


def result_text(point: ResultPoint) -> str:
    """Format ``0.4823 at step 1,200``."""
    step = point["step"]
    return f"{point['value']:.4g}" + ("" if step is None else f" at step {step:,}")


def _checkpoints(status: JobStatus, *, named: bool) -> Iterator[tuple[str, str]]:
    """Yield the newest checkpoints, in list order, and the number of others."""
    from trainctl.base.checkpoints.layout import recency_key
    from trainctl.views.runs.checkpoints import checkpoint_state_text

    checkpoints = status.checkpoints
    ordered = sorted(checkpoints, key=lambda checkpoint: recency_key(asdict(checkpoint)))
    shown = ordered[-_CHECKPOINTS:]
    for checkpoint in checkpoints:
        if checkpoint in shown:
            text = f"{escape(checkpoint.name)}, rank {checkpoint.rank}, {format_bytes(checkpoint.bytes)}"
            if not checkpoint.complete or checkpoint.skipped_links:
                text += f", {checkpoint_state_text(checkpoint)}"
            yield "checkpoint", text
    more = len(checkpoints) - _CHECKPOINTS
    if more > 0:
        job = shlex.quote(str(status.address).removeprefix("job."))
        run = f" --run {status.run.id}" if named else ""
        yield "", f"… and {more:,} more: trainctl checkpoints list {job}{run}"


def _phases(status: JobStatus, now: float) -> Iterator[tuple[str, str]]:
    """Yield the duration of each phase, the forecast, and the deadline."""
    run = status.run
    phases = dict(run.phases)
    if run.status is RunStatus.RUNNING and run.started_at is not None:
        phases["running"] = max(0.0, now - run.started_at)
    for name in _PHASES:
        if name in phases:
            expected = status.forecast.get(name)
            forecast = f", in run {status.like} {format_duration(expected)}" if expected else ""
            yield name, f"{format_duration(phases[name])}{forecast}"
    if status.deadline is not None:
        left = status.deadline - now
        yield "deadline", f"in {format_duration(left)}" if left > 0 else "exceeded, stopping"


def _transfers(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the weights mirrored for the run, and bytes, route and time of each delivery."""
    for value in run.mirrored:
        mirroring = MirroringRecord.from_json(value)
        if mirroring.bytes:
            text = f"{format_bytes(mirroring.bytes)} in {format_duration(mirroring.seconds)}"
            through = through_client_text(mirroring.bytes_through_client)
            yield "mirrored", f"{value['weights']}: {text}{through}"
    for row in map(DeliveryRecord.from_json, run.deliveries):
        if row.moved:
            rank = f", rank {row.rank}" if len(run.ranks) > 1 else ""
            text = f"{format_bytes(row.moved)} in {format_duration(row.seconds)}"
            seconds = row.forecast_seconds
            forecast = f", forecast {format_duration(seconds)}" if seconds is not None else ""
            size = row.bytes_through_client if row.path != THROUGH_CLIENT else 0
            through = through_client_text(size)
            yield "delivered", f"{row.weights}{rank}: {text} ({row.path}){through}{forecast}"


def through_client_text(size: int) -> str:
    """Format ``, 2 GB via the client``; '' for nothing."""
    return f", {format_bytes(size)} via the client" if size else ""


def progress_text(progress: Mapping[str, Any], *, bar: bool = True) -> str:
    """Format ``120/1,000 [###-----] 12 %, 3m 20s left, loss 2.31``."""
    step, total = progress.get("step"), progress.get("total")
    parts = []
    if step is not None:
        parts.append(f"step {step:,}")
    if step is not None and total:
        share = min(1.0, max(0.0, step / total))
        filled = int(share * _BAR)
        drawn = f" [{'#' * filled}{'-' * (_BAR - filled)}]" if bar else ""
        parts[0] += f"/{total:,}{drawn} {int(share * 100)} %"
    if progress.get("remaining_seconds") is not None:
        parts.append(f"{format_duration(progress['remaining_seconds'])} left")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.4g}")
    return ", ".join(parts)


def run_exit_code(run: RunRecord) -> int:
    """Return the exit code of a command that followed a run."""
    return 0 if run.status is RunStatus.COMPLETED else 12


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
    rows = []
    for address, group in groups.items():
        run, is_matrix = group[0].run, address != group[0].address
        places = [rank.place for status in group for rank in status.run.ranks]
        started = [at for status in group if (at := status.run.started_at) is not None]
        ran = None if is_matrix else run.phases.get("running")
        rows.append(
            [
                f"{address} ({len(group)})" if is_matrix else str(address),
                "" if is_matrix else f"{run.number} ({run.id})",
                counts_by_state(group) if is_matrix else state_text(group[0]),
                ", ".join(sorted({*places}) if is_matrix else dict.fromkeys(places)),
                format_minute(min(started, default=None)),
                "" if ran is None else format_duration(ran),
                str(sum(len(status.checkpoints) for status in group)),
            ]
        )
    headers = ["JOB", "RUN", "STATUS", "NODE", "STARTED (UTC)", "RAN", "CKPTS"]
    sweeps = [group for address, group in groups.items() if address != group[0].address]
    counts = [display_width(counts_by_state(group)) for group in sweeps]
    narrowest = {"STATUS": max([NARROWEST_STATE, *counts])}
    return table(
        headers,
        rows,
        width=width,
        shrinks={"NODE", "STATUS"},
        narrowest=narrowest,
        drops=("STARTED (UTC)", "NODE"),
    )


def pending_job_lines(jobs: Sequence[Address], statuses: Iterable[JobStatus]) -> list[str]:
    """Return approved jobs that wait for a later apply.

    ``reconcile`` does not replace live runs, as it can't ask for permission.
    """
    live = {status.address for status in statuses if status.run.status.live}
    groups = (
        (False, "not started yet", "They start with a later apply, or with: trainctl reconcile."),
        (True, "to replace a live run", "To start them, run: trainctl apply --stop-running."),
    )
    lines = []
    for is_live, what, hint in groups:
        group = [job for job in jobs if (job in live) is is_live]
        if group:
            names = ", ".join(map(str, group[:_NAMED])) + (", …" if len(group) > _NAMED else "")
            lines += ["", f"Approved{'' if is_live else ','} {what} ({len(group)}): {names}"]
            lines.append(f"{hint} To see what blocks them: trainctl plan")
    return lines


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
    return ", ".join(f"{counts[status]} {status.words}" for status in LIVE_FIRST if counts[status])


_REASONS = 5
"""How many reasons of failed runs are listed."""


def sweep_lines(statuses: Sequence[JobStatus], now: float, width: int | None = None) -> list[str]:
    """Return a table of a matrix by its varying values, and the counts."""
    names = varying_names([dict(status.matrix) for status in statuses])
    shared = [f"{name}={value}" for name, value in statuses[0].matrix if name not in names]
    ordered = sorted(
        statuses, key=lambda status: [_sort_key(dict(status.matrix).get(n, "")) for n in names]
    )
    rows = []
    for status in ordered:
        run = status.run
        ran = run.running_seconds(now)
        rows.append(
            [
                *(escape(dict(status.matrix).get(name, "")) for name in names),
                state_text(status),
                f"{run.number} ({run.id})",
                "" if ran is None else format_duration(ran),
                checkpoint_text(status),
            ]
        )
    headers = [*(escape(name) for name in names), "STATUS", "RUN", "RAN", "CHECKPOINT"]
    lines = table(
        headers,
        rows,
        width=width,
        narrowest={"STATUS": NARROWEST_STATE},
        drops=("RUN", "RAN"),
    )
    head = [f"Same for all: {escape(', '.join(shared))}", ""] if shared else []
    reasons = Counter(
        (status.run.status.words, status.run.error.splitlines()[0])
        for status in ordered
        if status.run.error
    )
    lines += ["", f"{statuses[0].address.group}: {counts_by_state(statuses)}"]
    lines += [
        f"  {state}{f' ({count})' if count > 1 else ''}: {escape(error)}"
        for (state, error), count in reasons.most_common(_REASONS)
    ]
    if len(reasons) > _REASONS:
        lines.append(f"  … and {len(reasons) - _REASONS} more reasons: trainctl status JOB")
    return [*head, *lines]


def varying_names(matrices: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of the matrix of which jobs have different values."""
    names = dict.fromkeys(name for matrix in matrices for name in matrix)
    return [name for name in names if len({matrix.get(name) for matrix in matrices}) > 1]


def newest_checkpoint(status: JobStatus) -> Checkpoint | None:
    """Return the newest complete checkpoint of a run."""
    from trainctl.base.checkpoints.layout import recency_key

    complete = [checkpoint for checkpoint in status.checkpoints if checkpoint.complete]
    return max(complete, key=lambda checkpoint: recency_key(asdict(checkpoint)), default=None)


def checkpoint_text(status: JobStatus) -> str:
    """Format the newest complete checkpoint: ``step 100``, or its name; empty without one."""
    newest = newest_checkpoint(status)
    if newest is None:
        return ""
    return escape(newest.name) if newest.step is None else f"step {newest.step}"


def _sort_key(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
