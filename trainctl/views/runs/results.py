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
from trainctl.views.runs.status import checkpoint_text, newest_checkpoint, result_text
from trainctl.views.terminal.text import escape, format_timestamp, table

_Point = Literal["last", "min", "max"]
_POINTS: tuple[_Point, ...] = ("last", "min", "max")


def sort_results(results: Sequence[RunResult], by: str) -> list[RunResult]:
    """Sort by ``KEY`` or ``KEY:min``, the lowest value first, or ``KEY:max``, the highest first; runs without it are last.

    UsageError if no run has the key.
    """
    key, mode = _key_and_mode(by)
    names = keys_of(results)
    if key not in names:
        near = nearest(key, names)
        hint = f"Did you mean {near}?" if near else f"Keys: {', '.join(names) or 'none'}."
        raise UsageError(f"no run has reported {key!r}", hint, code="unknown-result")
    sign = -1 if mode == "max" else 1

    def order(result: RunResult) -> tuple[bool, float]:
        reported = result.reported.get(key)
        return reported is None, sign * reported[mode]["value"] if reported else 0.0

    return sorted(results, key=order)


def keys_of(results: Iterable[RunResult]) -> list[str]:
    """Return the keys that runs have reported, by name."""
    return sorted({key for result in results for key in result.reported})


def results_table(
    results: Sequence[RunResult], width: int | None = None, by: str | None = None
) -> list[str]:
    """Return a table with the last value of each key and, if they fit, its extremes; for ``by`` the best, with its step.

    Columns that don't fit are named below.
    """
    if not results:
        return ["No run has started."]
    lines, shown = _table_and_titles(results, width, by, extremes=False)
    wide, also_shown = _table_and_titles(results, width, by, extremes=True)
    if also_shown == shown:
        lines = wide
    if hidden := [title for key in keys_of(results) if (title := escape(key)) not in shown]:
        lines += ["", f"Not shown: {', '.join(hidden)}. To see all: --format csv"]
    return lines


def _table_and_titles(
    results: Sequence[RunResult], width: int | None, by: str | None, *, extremes: bool
) -> tuple[list[str], set[str]]:
    """Return the table, and the titles of the columns that fit."""
    keys = keys_of(results)
    matrices = [dict(result.status.matrix) for result in results]
    names = [name for name in dict.fromkeys(n for matrix in matrices for n in matrix) if len({matrix.get(name) for matrix in matrices}) > 1]  # fmt: skip
    jobs = {str(result.status.address.group) for result in results}
    best, mode = _key_and_mode(by or "")
    title = f"{'HIGHEST' if mode == 'max' else 'LOWEST'} {best}"
    headers = ["JOB", *names, "RUN", "STATUS", *([title] if by else []), *keys, "STEP", "RAN", "COST", "CHECKPOINT"]  # fmt: skip
    rows = []
    for result, matrix in zip(results, matrices, strict=True):
        run, reported = result.status.run, result.reported
        steps = [each["last"]["step"] for each in reported.values() if each["last"]["step"] is not None]  # fmt: skip
        rows.append(
            [
                "" if len(jobs) == 1 else str(result.status.address.group).removeprefix("job."),
                *(escape(matrix.get(name, "")) for name in names),
                f"{run.number} ({run.id})",
                run.words,
                *([_best(result, best, mode)] if by else []),
                *(_values(reported.get(key), extremes=extremes and key != best) for key in keys),
                f"{max(steps):,}" if steps else "",
                "" if result.seconds is None else format_duration(result.seconds),
                "" if result.cost is None else f"{result.cost:.2f}",
                checkpoint_text(result.status),
            ]
        )  # fmt: skip
    titles = [escape(key) for key in keys]
    drops = ("CHECKPOINT", "RAN", "STEP", "COST", *(t for t in reversed(titles) if t != escape(best)))  # fmt: skip
    headers = [escape(header) for header in headers]
    lines = table(headers, rows, width=width, right=titles, shrinks=(), drops=drops)
    return lines, {title.strip() for title in lines[0].split("  ")}


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
    fixed = [name for name in (rows[0] if rows else ()) if name in _COLUMNS]
    others = dict.fromkeys(name for row in rows for name in row if "." in name)
    return [*fixed, *others], rows


_COLUMNS = frozenset({"address", "run", "number", "status", "seconds", "cost", "checkpoint"})


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


def _key_and_mode(by: str) -> tuple[str, _Point]:
    key, _, mode = by.rpartition(":")
    if mode == "max":
        return key, "max"
    return (key if mode == "min" else by), "min"


def _best(result: RunResult, key: str, mode: _Point) -> str:
    if key not in result.reported:
        return ""
    return result_text(result.reported[key][mode])


def _values(result: KeyResult | None, *, extremes: bool) -> str:
    """Format the last value: ``1.2 (0.9 to 3)``."""
    if result is None:
        return ""
    last, low, high = (f"{result[point]['value']:.4g}" for point in _POINTS)
    return f"{last} ({low} to {high})" if extremes and low != high else last
