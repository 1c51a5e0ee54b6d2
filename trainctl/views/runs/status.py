"""Format the status of one job."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trainctl.base.checkpoints.layout import recency_key
from trainctl.base.units import format_bytes, format_duration
from trainctl.model.delivery import THROUGH_CLIENT, DeliveryRecord, MirroringRecord
from trainctl.model.json_codec import to_json
from trainctl.model.reports import JobStatus, PendingApply
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.views.runs.checkpoints import checkpoint_json, checkpoint_state_text
from trainctl.views.runs.training import progress_text
from trainctl.views.terminal.text import escape, format_timestamp, second

_CHECKPOINTS = 3
_PHASES = ("mirroring", "provisioning", "delivering", "running")


def status_json(status: JobStatus) -> dict[str, Any]:
    """Return the JSON of ``status``."""
    run = status.run
    recorded, reported, now = run.to_json(), run.reported, run.now
    session, sync = reported.get("session"), reported.get("sync", {})
    times = ("created_at", "started_at", "ended_at")
    return {
        "address": str(status.address),
        "run": run.id,
        **{name: recorded[name] for name in ("number", "status", "error", "image_digest")},
        "refresh_error": status.refresh_error or None,
        "waiting": now.get("waiting"),
        "session": session and {**session, "until": format_timestamp(session["until"])},
        "progress": progress_json(now.get("progress")),
        "matrix": dict(status.matrix) or None,
        "ranks": [_rank_json(rank, status.workdir) for rank in run.ranks],
        **{name: format_timestamp(recorded[name]) for name in times},
        "phases": {name: run.phases.get(name, 0.0) for name in _PHASES},
        "mirrored": [
            {"weights": row["weights"], **MirroringRecord.from_json(row).to_json()}
            for row in run.mirrored
        ],
        "deliveries": [DeliveryRecord.from_json(row).to_json() for row in run.deliveries],
        "checkpoint_sync_status": sync.get("state"),
        "checkpoint_sync_error": sync.get("error"),
        "loaded_checkpoints": reported.get("loaded") or [],
        "forecast": dict(status.forecast) or None,
        "deadline_at": format_timestamp(status.deadline),
        "retries": reported.get("retries") or 0,
        "rerun_of": run.rerun_of,
        "checkpoints": [checkpoint_json(checkpoint) for checkpoint in status.checkpoints],
        "apply": status.apply
        and {**asdict(status.apply), "since": format_timestamp(status.apply.since)},
    }


def _rank_json(rank: RankRecord, workdir: Mapping[int, str]) -> dict[str, Any]:
    recorded = to_json(rank)
    names = ("rank", "status", "exit_code", "error")
    form = {name: recorded[name] for name in names}
    return {**form, "node": rank.place, "workdir": workdir.get(rank.rank)}


def progress_json(progress: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON of reported training progress."""
    if progress is None:
        return None
    names = ("step", "total", "loss", "remaining_seconds")
    values = {name: progress.get(name) for name in names}
    return {**values, "updated_at": format_timestamp(progress.get("updated_at"))}


def status_lines(status: JobStatus, now: float, *, named: bool = False) -> list[str]:
    """Return the status lines of a job; ``named`` if the run was given."""
    run = status.run
    lines = [f"{status.address}  run {run.number} ({run.id})  {run.words}"]
    if status.refresh_error:
        lines.append(f"  last known status: {status.refresh_error}")
    lines += [f"  {word:<13} {text}" for word, text in _remark_lines(run)]
    lines += [f"  {word:<13} {text}" for word, text in _session_lines(status)]
    if status.apply:
        lines.append(f"  {'apply':<13} {_apply_text(status.apply)}")
    for rank in run.ranks:
        lines.append(f"  {f'rank {rank.rank}':<13} {_rank_text(rank, len(run.ranks))}")
        if rank.rank in status.workdir:
            lines.append(f"  {'files':<13} {escape(status.workdir[rank.rank])}")
    times = (("created", run.created_at), ("started", run.started_at), ("ended", run.ended_at))
    lines += [f"  {word:<13} {second(when)} UTC" for word, when in times if format_timestamp(when)]
    lines += _phase_lines(status, now)
    lines += [*_mirrored_lines(run), *_delivery_lines(run)]
    return [*lines, *_checkpoint_lines(status, named=named)]


def _checkpoint_lines(status: JobStatus, *, named: bool) -> list[str]:
    """Return the newest checkpoints, in list order, and the number of others."""
    checkpoints = status.checkpoints
    shown = sorted(checkpoints, key=lambda checkpoint: recency_key(asdict(checkpoint)))[
        -_CHECKPOINTS:
    ]
    lines = []
    for checkpoint in checkpoints:
        if checkpoint in shown:
            state = (
                ""
                if checkpoint.complete and not checkpoint.skipped_links
                else f", {checkpoint_state_text(checkpoint)}"
            )
            lines.append(
                f"  {'checkpoint':<13} {escape(checkpoint.name)}, rank {checkpoint.rank}, {format_bytes(checkpoint.bytes)}{state}"
            )
    if len(checkpoints) > _CHECKPOINTS:
        job = shlex.quote(str(status.address).removeprefix("job."))
        run = f" --run {status.run.id}" if named else ""
        more = (
            f"… and {len(checkpoints) - _CHECKPOINTS:,} more: trainctl checkpoints list {job}{run}"
        )
        lines.append(f"  {'':<13} {more}")
    return lines


def _remark_lines(run: RunRecord) -> list[tuple[str, str]]:
    """Return labelled remarks about a run."""
    reported, progress = run.reported, run.now.get("progress")
    sync = reported.get("sync", {})
    upload = f"{sync['state'].lower()}: {sync['error']}" if sync.get("error") else ""
    stopping = run.stop_requested and run.status.live
    stop = "requested; not all nodes have reported the end of the run" if stopping else None
    remarks = [
        ("error", run.error),
        ("stop", stop),
        ("retries", str(reported.get("retries") or "")),
        ("repeats", f"run {run.rerun_of}" if run.rerun_of else None),
        ("reused from", " in ".join((run.reused_from or {}).values())),
        (run.status.words, run.now.get("waiting")),
        ("image", run.image_digest),
        ("progress", progress_text(progress) if progress else None),
        *(
            ("started with", ", ".join([f"{row['run']}: {row['name']}", *row.get("pointers", ())]))
            for row in reported.get("loaded") or ()
        ),
        ("upload", upload),
    ]
    return [(word, escape(text)) for word, text in remarks if text]


def _session_lines(status: JobStatus) -> list[tuple[str, str]]:
    """Return how the commands ended of a run that keeps its place, and what to do with it."""
    session = status.run.reported.get("session")
    if not session or not status.run.status.live:
        return []
    code, until = session["exit_code"], second(session["until"])
    ended = "commands completed" if code == 0 else f"commands failed with exit code {code}"
    job = status.address.shell_quoted
    return [
        ("session", f"{ended}; keeps its place until {until} UTC"),
        ("to enter", f"trainctl ssh {job}"),
        ("to extend", f"trainctl session extend {job}"),
        ("to end", f"trainctl stop {job}"),
    ]


def _apply_text(apply: PendingApply) -> str:
    """Format the apply that starts the run."""
    text = f"of {escape(apply.actor)}, since {second(apply.since)} UTC"
    return f"{text}: interrupted; the next apply resumes it" if apply.interrupted else text


def _rank_text(rank: RankRecord, ranks: int) -> str:
    """Format a rank's node; in a multi-rank run also its status and error."""
    parts = [rank.place]
    if ranks > 1:
        parts.append(rank.status.words)
    if rank.exit_code is not None:
        parts.append(f"exit code {rank.exit_code}")
    if rank.error:
        parts.append(escape(rank.error))
    return ", ".join(parts)


def _phase_lines(status: JobStatus, now: float) -> list[str]:
    """Return the duration of each phase, the forecast, and the deadline."""
    run, lines = status.run, []
    phases = dict(run.phases)
    if run.status is RunStatus.RUNNING and run.started_at is not None:
        phases["running"] = max(0.0, now - run.started_at)
    for name in _PHASES:
        if name in phases:
            duration = format_duration(phases[name])
            expected = status.forecast.get(name)
            forecast = f", in run {status.like} {format_duration(expected)}" if expected else ""
            lines.append(f"  {name:<13} {duration}{forecast}")
    if status.deadline is not None:
        left = status.deadline - now
        text = f"in {format_duration(left)}" if left > 0 else "exceeded, stopping"
        lines.append(f"  {'deadline':<13} {text}")
    return lines


def _mirrored_lines(run: RunRecord) -> list[str]:
    """Return the weights mirrored for the run."""
    lines = []
    for value in run.mirrored:
        row = MirroringRecord.from_json(value)
        if row.bytes:
            text = f"{format_bytes(row.bytes)} in {format_duration(row.seconds)}"
            through = through_client_text(row.bytes_through_client)
            lines.append(f"  {'mirrored':<13} {value['weights']}: {text}{through}")
    return lines


def through_client_text(size: int) -> str:
    """Format ``, 2 GB via the client``; '' for nothing."""
    return f", {format_bytes(size)} via the client" if size else ""


def _delivery_lines(run: RunRecord) -> list[str]:
    """Return bytes, route and time of each delivery."""
    rows = [row for row in map(DeliveryRecord.from_json, run.deliveries) if row.moved]
    lines = []
    for row in rows:
        rank = f", rank {row.rank}" if len(run.ranks) > 1 else ""
        text = f"{format_bytes(row.moved)} in {format_duration(row.seconds)}"
        forecast = row.forecast_seconds
        forecast_text = f", forecast {format_duration(forecast)}" if forecast is not None else ""
        size = row.bytes_through_client if row.path != THROUGH_CLIENT else 0
        through = through_client_text(size)
        lines.append(
            f"  {'delivered':<13} {row.weights}{rank}: {text} ({row.path}){through}{forecast_text}"
        )
    return lines


def run_exit_code(run: RunRecord) -> int:
    """Return the exit code of a command that followed a run."""
    return 0 if run.status is RunStatus.COMPLETED else 12
