"""Training progress that a job reports.

A job appends JSON lines with ``step``, ``total``, ``loss`` and ``remaining_seconds`` to ``$TRAINCTL_PROGRESS``. A newer
line overrides the values of older ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Dict, List, Optional

from trainctl.base.protocol.runs import TrainingProgress
from trainctl.node.runs.record import NodeRun

_TAIL_BYTES = 2**16
_HEAD_BYTES = 2**12


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
        first = _numbers(_read(run, 0, _HEAD_BYTES)[::-1]).get("step", 0.0) if is_resumed else 0.0
        if step > first:
            left = (at - started_at) * (total - step) / (step - first)
    return {
        "step": None if step is None else int(step),
        "total": None if total is None else int(total),
        "loss": row.get("loss"),
        "remaining_seconds": max(0.0, left - (time.time() - at))
        if is_live and left is not None
        else None,
        "updated_at": at,
    }


def newest_values(run: NodeRun) -> Dict[str, float]:
    """Return the newest value of each number in the last lines."""
    with contextlib.suppress(OSError):
        size = run.progress_lines.stat().st_size
        return _numbers(_read(run, max(0, size - _TAIL_BYTES), _TAIL_BYTES))
    return {}


def _read(run: NodeRun, start: int, length: int) -> List[bytes]:
    with run.progress_lines.open("rb") as stream:
        stream.seek(start)
        return stream.read(length).splitlines()


def _numbers(lines: List[bytes]) -> Dict[str, float]:
    """Return the last finite number of each name."""
    row: Dict[str, float] = {}
    for line in lines:
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            for name, number in value.items() if isinstance(value, dict) else ():
                if type(number) in (int, float) and math.isfinite(number):
                    row[str(name)] = number
    return row
