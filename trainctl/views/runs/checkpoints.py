"""Format checkpoints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainctl.base.lazy_dataclass import asdict
from trainctl.base.units import format_bytes
from trainctl.inputs.serving import JOB, PORT, WEIGHTS, ServedCheckpoint
from trainctl.model.reports import Checkpoint, CheckpointFile, UnreachableNode
from trainctl.views.terminal.text import (
    escape,
    format_minute,
    format_timestamp,
    pluralize,
    table,
    unreachable_json,
)

CHECKPOINT_COLUMNS = (
    "job", "run", "name", "rank", "step", "type", "base_model", "bytes", "state", "created_at", "url", "skipped_links", "unfinished", "value",
)  # fmt: skip


def checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the JSON of a checkpoint, without its job and value."""
    form = {
        **asdict(checkpoint),
        "complete": checkpoint.complete,
        "created_at": format_timestamp(checkpoint.created_at),
    }
    del form["job"], form["value"]
    return form


def checkpoints_json(
    checkpoints: Sequence[Checkpoint], unreachable: Sequence[UnreachableNode]
) -> dict[str, Any]:
    """Return the JSON of ``checkpoints list``."""
    return {
        "checkpoints": [
            {"job": checkpoint.job, **checkpoint_json(checkpoint), "value": checkpoint.value}
            for checkpoint in checkpoints
        ],
        "unreachable": unreachable_json(unreachable),
    }


def checkpoint_table(
    checkpoints: Sequence[Checkpoint],
    width: int | None = None,
    *,
    jobs: bool = False,
    metric: str = "",
) -> list[str]:
    """Return a table of checkpoints, with a job column if ``jobs``, and their values of a metric."""
    if not checkpoints:
        return ["No checkpoints."]
    has_ranks = any(checkpoint.rank for checkpoint in checkpoints)
    rows = [
        [
            *([escape(checkpoint.job.removeprefix("job."))] if jobs else []),
            checkpoint.run,
            escape(checkpoint.name),
            *([str(checkpoint.rank)] if has_ranks else []),
            "" if checkpoint.step is None else str(checkpoint.step),
            *(["" if checkpoint.value is None else f"{checkpoint.value:.4g}"] if metric else []),
            kind if checkpoint.lora_rank is None else f"{kind} r={checkpoint.lora_rank}",
            escape(checkpoint.base_model or ("unknown" if kind in ("full", "whisper") else "")),
            _count(checkpoint.parameters),
            format_bytes(checkpoint.bytes),
            checkpoint_state_text(checkpoint),
            format_minute(checkpoint.created_at),
        ]
        for checkpoint in checkpoints
        for kind in [checkpoint.type or ""]
    ]
    rank = ["RANK"] if has_ranks else []
    headers = [
        *(["JOB"] if jobs else []), "RUN", "CHECKPOINT", *rank, "STEP", *([escape(metric)] if metric else []), "TYPE", "BASE MODEL", "PARAMS", "SIZE", "STATE",
        "CREATED (UTC)",
    ]  # fmt: skip
    drops = ("CREATED (UTC)", "PARAMS", "BASE MODEL")
    return table(headers, rows, width=width, shrinks={"BASE MODEL"}, drops=drops)


def checkpoint_state_text(checkpoint: Checkpoint) -> str:
    """Return the state, with the reason if unfinished, and the number of skipped symlinks."""
    reason = f": {escape(checkpoint.unfinished)}" if checkpoint.unfinished else ""
    skipped = (
        f", {skipped_links_text(checkpoint.skipped_links)}" if checkpoint.skipped_links else ""
    )
    return f"{checkpoint.state}{reason}{skipped}"


def skipped_links_text(number: int) -> str:
    """Describe symlinks that were not uploaded."""
    return f"{pluralize(number, 'symlink')} skipped"


def artifacts_json(job: str, made_at: float, files: Sequence[CheckpointFile]) -> dict[str, Any]:
    """Return the JSON of ``checkpoints url``, as in the hosted service."""
    return {
        "timestamp": format_timestamp(made_at),
        "job": job,
        "checkpoint_artifacts": [
            {
                "url": file.url,
                "relative_file_name": file.path,
                "node_rank": file.rank,
                "size_bytes": file.bytes,
                "last_modified": format_timestamp(file.modified),
            }
            for file in files
        ],
    }


def serving_lines(serving: ServedCheckpoint, directory: Path, *, dry_run: bool) -> Iterator[str]:
    """Yield what ``checkpoints deploy`` wrote and the next steps, or with ``dry_run`` the files with their text."""
    files, where = serving.row["files"], shlex.quote(str(directory))
    size = f"{pluralize(len(files), 'file')}, {format_bytes(sum(file['size'] for file in files))}"
    verb, name = "Would write" if dry_run else "Wrote", escape(serving.row["name"])
    yield f"{verb} {where}/{WEIGHTS}: {name}, {serving.row['type']}, {size}"
    for path, text in serving.files().items():
        yield f"{verb} {where}/{path}{':' if dry_run else ''}"
        if dry_run:
            yield from (f"  {line}".rstrip() for line in text.splitlines())
    if not dry_run:
        yield f"Next: trainctl -C {where} apply, then trainctl -C {where} proxy {JOB} {PORT}"


def _count(number: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number) if number else ""
