"""Format training progress and plots of a run's history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainctl.base.units import format_duration
from trainctl.model.reports import RankSample

_BAR = 20
_LEVELS = "▁▂▃▄▅▆▇█"
_LABELS = 13


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


def plot_lines(samples: Sequence[RankSample], width: int | None) -> list[str]:
    """Return one line for each quantity of each rank, with its first, lowest, highest and last value."""
    columns = max(10, min(width or 80, 120) - _LABELS - 34)
    lines: list[str] = []
    for rank in sorted({sample.rank for sample in samples}):
        own = [sample for sample in samples if sample.rank == rank]
        rows = [f"  {name:<{_LABELS}} {_plot(values, columns)}" for name, values in _series(own)]
        lines += [f"rank {rank}", *rows]
    return lines


def _series(samples: Sequence[RankSample]) -> list[tuple[str, list[float]]]:
    numbers = sorted({number for sample in samples for number in sample.gpus})
    columns: list[tuple[str, list[Any]]] = [
        ("loss", [(sample.progress or {}).get("loss") for sample in samples]),
        ("step", [(sample.progress or {}).get("step") for sample in samples]),
        ("CPU cores", [sample.cpu_usage for sample in samples]),
        ("memory GB", [sample.cpu_memory_usage_bytes / 1e9 for sample in samples]),
    ]
    for number in numbers:
        busy = [s.gpus[number].utilization for s in samples if number in s.gpus]
        columns.append((f"GPU {number} %", [None if n is None else n * 100 for n in busy]))
    rows = [(name, [float(n) for n in column if n is not None]) for name, column in columns]
    return [(name, values) for name, values in rows if values]


def _plot(values: Sequence[float], columns: int) -> str:
    """Format ``▁▃█▅ 1.2 to 3.4, last 2``; each column is the mean of its values."""
    size = max(1, math.ceil(len(values) / columns))
    groups = [values[index : index + size] for index in range(0, len(values), size)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    drawn = "".join(_LEVELS[round((mean - low) * scale)] for mean in means)
    return f"{drawn}  {min(values):.4g} to {max(values):.4g}, last {values[-1]:.4g}"
