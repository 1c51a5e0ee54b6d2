"""Training progress and results that a job reports.

A job appends JSON lines with numbers to ``$TRAINCTL_PROGRESS``: ``step``, ``total``, ``remaining_seconds``, and any other,
such as ``loss``, which is a result. A newer line overrides the values of older ones.
"""

from __future__ import annotations

import contextlib
import time
from typing import Dict, List, Optional

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.protocol.runs import TrainingProgress
from trainctl.node.metrics import trainer_hook
from trainctl.node.runs.points import begin_attempt, numbers_of
from trainctl.node.runs.record import NodeRun

_HEAD_BYTES = 2**12
_TAIL_BYTES = 2**16


def begin_progress(run: NodeRun) -> Dict[str, str]:
    """Discard the progress of an earlier attempt; return the job's variables."""
    hook = run.progress / trainer_hook.FILE
    make_directory(hook.parent)
    begin_attempt(run)
    write_atomic(hook, trainer_hook.SOURCE, durable=False)
    return {"TRAINCTL_PROGRESS": str(run.progress_lines)}


def read_progress(
    run: NodeRun, started_at: Optional[float], *, is_live: bool = True
) -> Optional[TrainingProgress]:
    """Read the newest progress; None if the job reported none."""
    row = newest_values(run)
    if not row.keys() & {"step", "loss"}:
        return None
    at = run.progress_lines.stat().st_mtime
    step, total = row.get("step"), row.get("total")
    left = row.get("remaining_seconds")
    if left is None and started_at and step and total:
        is_resumed = run.record.get("loaded") or run.record.get("retries")
        # resumed training begins at its first step
        first = numbers_of(_read(run, 0, _HEAD_BYTES)[::-1]).get("step", 0.0) if is_resumed else 0.0
        if step > first:
            left = (at - started_at) * (total - step) / (step - first)
    if left is not None:
        left = max(0.0, left - (time.time() - at)) if is_live else None
    return {
        "step": None if step is None else int(step),
        "total": None if total is None else int(total),
        "loss": row.get("loss"),
        "remaining_seconds": left,
        "updated_at": at,
    }


def newest_values(run: NodeRun) -> Dict[str, float]:
    """Return the newest value of each number in the last lines."""
    with contextlib.suppress(OSError):
        size = run.progress_lines.stat().st_size
        return numbers_of(_read(run, max(0, size - _TAIL_BYTES), _TAIL_BYTES))
    return {}


def _read(run: NodeRun, start: int, length: int) -> List[bytes]:
    with run.progress_lines.open("rb") as stream:
        stream.seek(start)
        return stream.read(length).splitlines()
