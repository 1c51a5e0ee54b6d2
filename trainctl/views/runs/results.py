"""Format what runs reported, in a row each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from trainctl.base.points import KeyPoints
from trainctl.base.protocol.runs import KeyResult
from trainctl.base.units import format_duration
from trainctl.errors import UsageError
from trainctl.model.diagnostics import nearest
from trainctl.model.reports import RunResult
from trainctl.model.specs.location import CheckpointRanking
from trainctl.views.runs.status import (
    checkpoint_text,
    newest_checkpoint,
    result_text,
    varying_names,
)
from trainctl.views.terminal.text import escape, format_timestamp, table

_POINTS: tuple[Literal["last", "min", "max"], ...] = ("last", "min", "max")


def sort_results(results: Sequence[RunResult], by: str) -> list[RunResult]:
    """Sort by ``KEY`` or ``KEY:min``, the lowest value first, or ``KEY:max``, the highest first; runs without it are last.

    UsageError if no run has the key.
    """
    ranking = CheckpointRanking.read(by)
    require_key(ranking.metric, keys_of(results))
    sign = -1 if ranking.mode == "max" else 1

    def order(result: RunResult) -> tuple[bool, float]:
        reported = result.reported.get(ranking.metric)
        return reported is None, sign * reported[ranking.mode]["value"] if reported else 0.0

    return sorted(results, key=order)


def require_key(key: str, known: Iterable[str]) -> None:
    """Raise UsageError if no run has reported a key."""
    names = sorted(known)
    if key not in names:
        near = nearest(key, names)
        hint = f"Did you mean {near}?" if near else f"Reported: {', '.join(names) or 'nothing'}."
        raise UsageError(f"no run has reported {key!r}", hint, code="unknown-result")


def keys_of(results: Iterable[RunResult]) -> list[str]:
    """Return the keys that runs have reported, by name."""
    return sorted({key for result in results for key in result.reported})


def results_table(
    results: Sequence[RunResult], width: int | None = None, by: str | None = None
) -> list[str]:
    """Return a table with the last value of each key and, if it fits, its range; for ``by`` the best, with its step.

    Keys that don't fit are named below.
    """
    if not results:
        return ["No run has started."]
    matrices, keys = [dict(result.status.matrix) for result in results], keys_of(results)
    jobs = [str(result.status.address.group).removeprefix("job.") for result in results]
    runs = [result.status.run for result in results]
    columns = [
        ("JOB", jobs if len({*jobs}) > 1 else [""] * len(jobs)),
        *((name, [row.get(name, "") for row in matrices]) for name in varying_names(matrices)),
        ("RUN", [f"{run.number} ({run.id})" for run in runs]),
        ("STATUS", [run.words for run in runs]),
    ]
    best = ""
    if by is not None:
        ranking = CheckpointRanking.read(by)
        best, mode = ranking.metric, ranking.mode
        found = [result.reported.get(best) for result in results]
        title = f"{'HIGHEST' if mode == 'max' else 'LOWEST'} {best}"
        columns.append((title, [result_text(row[mode]) if row else "" for row in found]))
    for key in keys:
        found = [result.reported.get(key) for result in results]
        columns.append((key, [f"{row['last']['value']:.4g}" if row else "" for row in found]))
        columns.append((f"RANGE {key}", [_range(row) for row in found]))
    columns += [
        ("STEP", [_step(result) for result in results]),
        ("RAN", ["" if r.seconds is None else format_duration(r.seconds) for r in results]),
        ("COST", ["" if r.cost is None else f"{r.cost:.2f}" for r in results]),
        ("CHECKPOINT", [checkpoint_text(result.status) for result in results]),
    ]
    others = [key for key in keys[::-1] if key != best]
    drops = [*(f"RANGE {key}" for key in keys[::-1]), "CHECKPOINT", "RAN", "STEP", "COST", *others]
    lines = table(
        [escape(title) for title, _ in columns],
        [*zip(*(cells for _, cells in columns), strict=True)],
        width=width,
        right=[*map(escape, keys)],
        shrinks=(),
        drops=[*map(escape, drops)],
    )
    shown = {title.strip() for title in lines[0].split("  ")}
    if hidden := [title for title in map(escape, keys) if title not in shown]:
        lines += ["", f"Not shown: {', '.join(hidden)}. To see all: --format csv"]
    return lines


def _range(reported: KeyResult | None) -> str:
    low, high = (f"{reported[mode]['value']:.4g}" if reported else "" for mode in _POINTS[1:])
    return f"{low} to {high}" if low != high else ""


def _step(result: RunResult) -> str:
    steps = [row["last"]["step"] for row in result.reported.values()]
    newest = max((step for step in steps if step is not None), default=None)
    return "" if newest is None else f"{newest:,}"


def results_json(results: Sequence[RunResult]) -> dict[str, Any]:
    """Return the JSON of ``results``."""
    return {"runs": [_row(result) for result in results]}


def results_csv(results: Sequence[RunResult]) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """Return the columns and rows of ``results --format csv``."""
    rows = []
    for result in results:
        row = _row(result)
        row.update({f"matrix.{name}": value for name, value in result.status.matrix})
        for key, reported in result.reported.items():
            row.update({f"{key}.{point}": reported[point]["value"] for point in _POINTS})
        rows.append(row)
    others = dict.fromkeys(name for row in rows for name in row if "." in name)
    return [*_COLUMNS, *others], rows


_COLUMNS = ("address", "run", "number", "status", "seconds", "cost", "checkpoint")


def _row(result: RunResult) -> dict[str, Any]:
    run, checkpoint = result.status.run, newest_checkpoint(result.status)
    return {
        "address": str(result.status.address),
        "run": run.id,
        "number": run.number,
        "status": run.status.value,
        "matrix": dict(result.status.matrix) or None,
        "results": dict(result.reported),
        "points": {key: _columns(points) for key, points in result.points.items()},
        "started_at": format_timestamp(run.started_at),
        "seconds": result.seconds,
        "cost": result.cost,
        "checkpoint": checkpoint and checkpoint.name,
        "commit": run.commit,
        "refresh_error": result.status.refresh_error or None,
    }


def _columns(points: KeyPoints) -> dict[str, list[float | None]]:
    values, steps, times = points.columns()
    known = [None if step != step else step for step in steps]
    return {"values": [*values], "steps": known, "times": [*times]}
