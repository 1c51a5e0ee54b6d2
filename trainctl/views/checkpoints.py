"""Checkpoints, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.model.reports import Checkpoint, CheckpointFile, UnreachableNode
from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import (
    format_minute,
    format_timestamp,
    pluralize,
    unreachable_json,
)

CHECKPOINT_COLUMNS = (
    "job", "run", "name", "rank", "step", "type", "base_model", "bytes", "state", "created_at", "url", "skipped_links",
)  # fmt: skip


def checkpoint_json(one: Checkpoint) -> dict[str, Any]:
    """One row of ``checkpoints list --format json``, without its job."""
    form = {**asdict(one), "complete": one.complete, "created_at": format_timestamp(one.created_at)}
    del form["job"]
    return form


def checkpoints_json(
    found: Sequence[Checkpoint], unreachable: Sequence[UnreachableNode]
) -> dict[str, Any]:
    """The form of ``checkpoints list --format json``; ``unreachable`` are the unreachable nodes."""
    return {
        "checkpoints": [{"job": one.job, **checkpoint_json(one)} for one in found],
        "unreachable": unreachable_json(unreachable),
    }


def checkpoint_table(
    found: Sequence[Checkpoint], width: int | None = None, *, jobs: bool = False
) -> list[str]:
    """Checkpoints, a line each, with their ``jobs`` if these are several; in so many columns if they must fit."""
    if not found:
        return ["No checkpoints."]
    rows = [
        [
            *([escape(one.job.removeprefix("job."))] if jobs else []),
            one.run,
            escape(one.name),
            *([str(one.rank)] if _rank_count(found) else []),
            "" if one.step is None else str(one.step),
            _type_text(one),
            escape(one.base_model or ""),
            _count(one.parameters),
            format_bytes(one.bytes),
            checkpoint_state_text(one),
            format_minute(one.created_at),
        ]
        for one in found
    ]
    rank = ["RANK"] if _rank_count(found) else []
    headers = [
        *(["JOB"] if jobs else []), "RUN", "CHECKPOINT", *rank, "STEP", "TYPE", "BASE MODEL", "PARAMS", "SIZE", "STATE",
        "CREATED (UTC)",
    ]  # fmt: skip
    drops = ("CREATED (UTC)", "PARAMS", "BASE MODEL")
    return table(headers, rows, width=width, shrinks=frozenset({"BASE MODEL"}), drops=drops)


def checkpoint_state_text(one: Checkpoint) -> str:
    """Its state, with what isn't kept of it."""
    return (
        f"{one.state}, {skipped_links_text(one.skipped_links)}" if one.skipped_links else one.state
    )


def skipped_links_text(number: int) -> str:
    """Links that lead out of the job's checkpoint directory, or nowhere."""
    return f"{pluralize(number, 'symlink')} skipped"


def artifacts_json(job: str, made_at: float, found: Sequence[CheckpointFile]) -> dict[str, Any]:
    """What ``checkpoints url --format json`` prints: the hosted service's form."""
    return {
        "timestamp": format_timestamp(made_at),
        "job": job,
        "checkpoint_artifacts": [
            {
                "url": one.url,
                "relative_file_name": one.path,
                "node_rank": one.rank,
                "size_bytes": one.bytes,
                "last_modified": format_timestamp(one.modified),
            }
            for one in found
        ],
    }


def _type_text(one: Checkpoint) -> str:
    if one.type == "lora" and one.lora_rank is not None:
        return f"lora r={one.lora_rank}"
    return one.type or ""


def _rank_count(found: Sequence[Checkpoint]) -> bool:
    return any(one.rank for one in found)


def _count(number: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number) if number else ""
