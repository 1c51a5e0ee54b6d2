"""Charts as JSON: lines of points, thinned to the width of a screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainctl.model.reports import RankSample

Json = dict[str, Any]


def line_json(name: str, columns: Sequence[Sequence[float]], width: int) -> Json:
    """Return a line with the first and last point, and the lowest and highest of each of ``width`` parts.

    ``columns``: values, steps, which are NaN if unknown, and times.
    """
    values, steps, times = columns
    count, size = len(values), math.ceil(len(values) / width)
    kept = set(range(count) if size < 3 else (0, count - 1))
    for start in range(0, count, size) if size > 2 else ():
        column = values[start : start + size]
        kept |= {start + column.index(min(column)), start + column.index(max(column))}
    points = [i for i in sorted(kept) if math.isfinite(values[i])]
    return {
        "name": name,
        "t": [round(times[i], 1) for i in points],
        "s": [None if math.isnan(steps[i]) else steps[i] for i in points],
        "v": [float(f"{values[i]:.6g}") for i in points],
    }


def usage_charts(samples: Sequence[RankSample], width: int) -> list[Json]:
    """Return charts of what ranks used."""
    lines: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for sample in samples:
        step = (sample.progress or {}).get("step")
        for title, name, value in _usage(sample):
            if value is not None:
                point = (value, math.nan if step is None else step, sample.time)
                lines.setdefault(title, {}).setdefault(name, []).append(point)
    return [
        {"title": title, "lines": [line_json(n, [*zip(*p, strict=True)], width) for n, p in of.items()]}
        for title, of in lines.items()
    ]  # fmt: skip


def _usage(sample: RankSample) -> Iterator[tuple[str, str, float | None]]:
    rank = f"rank {sample.rank}"
    yield "CPU (cores)", rank, sample.cpu_usage
    yield "Memory (GB)", rank, sample.cpu_memory_usage_bytes / 1e9
    for number, gpu in sample.gpus.items():
        name, used = f"{rank}, GPU {number}", gpu.memory_usage_bytes
        yield "GPU (%)", name, None if gpu.utilization is None else gpu.utilization * 100
        yield "GPU memory (GB)", name, None if used is None else used / 1e9
