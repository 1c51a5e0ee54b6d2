"""Format GPU hours and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainctl.ledger.usage import UsageRow
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import escape, format_timestamp

USAGE_COLUMNS = ("name", "runs", "node_hours", "gpu_hours", "cost", "unpriced_hours")
_NUMBERS = ["RUNS", "NODE HOURS", "GPU HOURS", "COST (USD)"]


def usage_json(
    rows: Sequence[UsageRow], total: Sequence[UsageRow], by: str, since: float | None, until: float
) -> dict[str, Any]:
    """Return the JSON of ``usage``; ``total`` is empty or one row."""
    return {
        "by": by,
        "since": format_timestamp(since),
        "until": format_timestamp(until),
        "currency": "USD",
        "rows": usage_cells(rows),
        "total": next(iter(usage_cells(total)), None),
    }


def usage_cells(rows: Sequence[UsageRow]) -> list[dict[str, Any]]:
    """Return the JSON of rows, which are also CSV rows."""
    return [
        {name: round(value, 4) if name not in ("name", "runs") else value for name, value in row}
        for row in (asdict(row).items() for row in rows)
    ]


def usage_lines(
    rows: Sequence[UsageRow], total: Sequence[UsageRow], by: str, width: int | None = None
) -> list[str]:
    """Return a table of the usage with its total."""
    if not rows:
        return ["No runs in this period."]
    headers, cells = [by.upper(), *_NUMBERS], [_cells(row) for row in (*rows, *total)]
    shrinks = frozenset(headers[:1])
    lines = table(headers, cells, right=frozenset(_NUMBERS), width=width, shrinks=shrinks)
    if unpriced := sum(row.unpriced_hours for row in total):
        lines += ["", f"Not in the cost: {unpriced:.1f} node hours without a price_per_hour."]
    if by == "label":
        lines += ["", "A run counts for each of its labels, and once in the total."]
    return lines


def _cells(row: UsageRow) -> list[str]:
    cost = f"{row.cost:.2f}" if row.cost or not row.unpriced_hours else "-"
    hours = (f"{row.node_hours:.1f}", f"{row.gpu_hours:.1f}")
    return [escape(row.name) or "(none)", str(row.runs), *hours, cost]
