"""A state, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.units import format_bytes, format_duration
from trainctl.ledger.codec import recorded_to_json, state_to_json
from trainctl.ledger.history import HistoryRow
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.run import RunRecord
from trainctl.views.plan.changes import brief
from trainctl.views.plan.rows import added_rows
from trainctl.views.plan.tables import short_revision
from trainctl.views.status import through_client_text
from trainctl.views.terminal.sanitize import escape, literal
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import (
    Style,
    display_width,
    format_timestamp,
    pad,
    plain,
    pluralize,
    second,
    wrap,
)

_HIDDEN = frozenset({"runs", "nodes"})


_BELOW = " " * 8


def state_lines(state: State) -> list[str]:
    """Every resource in a line, then what is being changed at the moment."""
    if not state.resources and not state.open_intents:
        return ["The state is empty."]
    rows = [
        [str(address), recorded.provider, summary(recorded)]
        for address, recorded in sorted(state.resources.items())
    ]
    lines = table(["RESOURCE", "PROVIDER", "STATE"], rows) if rows else []
    intents = [intent for _, intent in sorted(state.open_intents.items())]
    if intents:
        lines += ["", "Started and not finished:", *(f"  {_intent(one)}" for one in intents)]
    lines += ["", f"Serial {state.serial}, lineage {state.lineage}"]
    return lines


def resource_lines(recorded: RecordedResource, style: Style = plain) -> list[str]:
    """One resource in full: its values, what came out of it, what it depends on."""
    values = {**recorded.outputs, **recorded.attributes}
    shown = {key: value for key, value in values.items() if key not in _HIDDEN}
    lines = [style(f"{recorded.address} ({recorded.provider})", "bold")]
    lines += _values(shown)
    lines += [f"  node {escape(line)}" for line in _nodes(recorded)]
    lines += [f"  run {escape(line)}" for line in _runs(recorded)]
    if recorded.depends_on:
        lines.append(f"  depends on {', '.join(str(one) for one in recorded.depends_on)}")
    if recorded.lifecycle.prevent_destroy:
        lines.append("  is protected (prevent_destroy)")
    return lines


def history_lines(
    rows: Sequence[HistoryRow], address: Address | None = None, width: int | None = None
) -> list[str]:
    """What was done, when and by whom, the oldest first; without looks that found what was known.

    ``address`` is what it is about, if not all.
    """
    if not rows:
        return [f"No history of {address}." if address else "No history yet."]
    cells = [
        [
            str(row.serial),
            second(row.time),
            escape(row.actor),
            row.address or "",
            escape(row.action),
            " ".join(part for part in (_status(row.status), row.run) if part),
            escape((row.reason or "").replace("_", " ")),
            _transfer_text(row),
        ]
        for row in _relevant_rows(rows)
    ]
    headers = ["SERIAL", "TIME (UTC)", "WHO", "ADDRESS", "ACTION", "STATUS", "REASON", "MOVED"]
    return _fit_table(headers, cells, width)


def _fit_table(headers: list[str], cells: list[list[str]], width: int | None) -> list[str]:
    """The table; in a window that is too narrow what moved stands below its row."""
    right = frozenset({"SERIAL"})
    whole = table(headers, cells, right=right)
    if width is None or max(map(display_width, whole)) <= width:
        return whole
    below = [row.pop() for row in cells]
    may = frozenset({"WHO", "ADDRESS", "REASON"})
    first, *rest = table(headers[:-1], cells, right=right, width=width, shrinks=may)
    lines = [first]
    for line, moved in zip(rest, below, strict=True):
        lines += [line, *(wrap(f"{_BELOW}{moved}", width) if moved else ())]
    return lines


def _relevant_rows(rows: Iterable[HistoryRow]) -> Iterator[HistoryRow]:
    last: dict[str | None, tuple[str | None, str]] = {}
    for row in rows:
        now = (row.run, row.status)
        if row.action != "observe" or row.deliveries or last.get(row.address) != now:
            yield row
        last[row.address] = now


def _transfer_text(row: HistoryRow) -> str:
    """What came into the mirror, or onto a run's nodes."""
    one = row.mirrored
    if one is None or not one.bytes:
        return _delivery_text(row.deliveries)
    took = f"{format_bytes(one.bytes)} in {format_duration(one.seconds)}"
    return took + through_client_text(one.bytes_through_client)


def _delivery_text(rows: Sequence[DeliveryRecord]) -> str:
    """What moved to a run's nodes, and how long the slowest rank took, beside what the plan said of it."""
    moved = [row for row in rows if row.moved]
    if not moved:
        return ""
    by_rank = [[row for row in moved if row.rank == rank] for rank in {row.rank for row in moved}]
    slowest = max(by_rank, key=lambda found: sum(row.seconds for row in found))
    took = format_duration(sum(row.seconds for row in slowest))
    words = f"{format_bytes(sum(row.moved for row in moved))} in {took}"
    forecasts = [row.forecast_seconds for row in slowest if row.forecast_seconds is not None]
    if len(forecasts) == len(slowest):
        words += f", forecast {format_duration(sum(forecasts))}"
    return words + through_client_text(sum(row.bytes_through_client for row in moved))


def summary(recorded: RecordedResource) -> str:
    """How a resource stands, in a few words."""
    values = {**recorded.attributes, **recorded.outputs}
    kind = recorded.address.kind
    if kind is Kind.JOB:
        runs = values.get("runs")
        newest = RunRecord.from_json(runs[-1]) if runs else None
        return f"run {newest.number} {newest.status.words}" if newest else "not run yet"
    if kind is Kind.WEIGHTS:
        return _weights(values)
    if kind is Kind.CLUSTER:
        return pluralize(len(values.get("nodes") or ()), "node")
    return escape(str(values.get("directory") or ""))


def _status(status: str) -> str:
    """``TRAINING_JOB_DEPLOY_FAILED`` as people say it; other words as they are."""
    return escape(status.removeprefix("TRAINING_JOB_").replace("_", " ").lower())


def _weights(values: Mapping[str, Any]) -> str:
    revision = short_revision(values.get("revision"))
    size = values.get("bytes")
    files = values.get("files")
    if size is None or files is None:
        return revision
    return f"{revision}, {pluralize(files, 'file')}, {format_bytes(size)}"


def _values(values: Mapping[str, Any]) -> list[str]:
    rows = list(added_rows(values))
    size = max((display_width(row.name) for row in rows), default=0)
    return [f"  {pad(row.name, size)} = {brief(row.after)}" for row in rows]


def _nodes(recorded: RecordedResource) -> Iterator[str]:
    for node in recorded.outputs.get("nodes") or ():
        yield f"{node.get('name')} at {node.get('address')}, {node.get('root')}"


def _runs(recorded: RecordedResource) -> Iterator[str]:
    for value in recorded.outputs.get("runs") or ():
        run = RunRecord.from_json(value)
        when = second(run.created_at)
        nodes = ", ".join(rank.node for rank in run.ranks)
        error = f": {run.error}" if run.error else ""
        parts = [f"{run.number} ({run.id})", run.status.words + error, nodes, when]
        yield "  ".join(part for part in parts if part)


def _intent(intent: Intent) -> str:
    began = second(intent.time)
    return f"{intent.action} {intent.address} by {literal(intent.holder.actor)} since {began} UTC"


def state_json(state: State) -> dict[str, Any]:
    """The whole state: what ``state pull`` and ``show`` print."""
    return state_to_json(state)


def resource_json(recorded: RecordedResource) -> dict[str, Any]:
    """One resource, as it stands among the state's."""
    return {
        "address": str(recorded.address),
        "version": recorded.version,
        **recorded_to_json(recorded),
    }


def history_json(rows: Iterable[HistoryRow]) -> dict[str, Any]:
    """The object that CONTRACT's ``history --format json`` describes; times are RFC 3339 in UTC."""
    return {"entries": [{**row.to_json(), "time": format_timestamp(row.time)} for row in rows]}
