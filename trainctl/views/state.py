"""Format a state, its history, and GPU hours and cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import asdict
from trainctl.base.units import format_bytes, format_duration
from trainctl.ledger.codec import recorded_to_json
from trainctl.ledger.leases import OpenLease
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.views.runs.status import through_client_text
from trainctl.views.terminal.text import (
    Style,
    display_width,
    escape,
    format_timestamp,
    literal,
    pad,
    plain,
    pluralize,
    second,
    table,
)

if TYPE_CHECKING:
    from trainctl.ledger.history import HistoryRow
    from trainctl.ledger.usage import UsageRow

_HIDDEN = frozenset({"runs", "nodes", "created", "quarantine"})
LEASE_COLUMNS = ("address", "action", "actor", "since", "age_seconds", "interrupted", "id")
_HOLDERS = {True: "ended", False: "running", None: "unknown"}
_NEXT = (
    "The next apply resumes what was interrupted, or first undoes it if the manifest has changed."
)
USAGE_COLUMNS = ("name", "runs", "node_hours", "gpu_hours", "cost", "unpriced_hours")
_NUMBERS = ["RUNS", "NODE HOURS", "GPU HOURS", "COST (USD)"]


def lease_lines(leases: Sequence[OpenLease], now: float, width: int | None = None) -> list[str]:
    """Return a table of open leases, and what the next apply does with them."""
    if not leases:
        return ["No open leases."]
    rows = [
        [
            str(lease.intent.address),
            lease.intent.action,
            escape(lease.intent.holder.actor),
            format_duration(max(0.0, now - lease.intent.time)),
            _HOLDERS[lease.interrupted],
            lease.intent.id,
        ]
        for lease in leases
    ]
    headers = ["ADDRESS", "ACTION", "WHO", "AGE", "HOLDER", "ID"]
    lines = table(headers, rows, width=width, shrinks={"ADDRESS", "WHO"})
    return [*lines, "", *_next_lines(leases)]


def lease_rows(leases: Sequence[OpenLease], now: float) -> list[dict[str, Any]]:
    """Return the rows of ``state leases`` as JSON or CSV; ages in seconds."""
    return [
        {
            "address": str(lease.intent.address),
            "action": lease.intent.action,
            "actor": lease.intent.holder.actor,
            "since": format_timestamp(lease.intent.time),
            "age_seconds": round(max(0.0, now - lease.intent.time), 1),
            "interrupted": lease.interrupted,
            "id": lease.intent.id,
        }
        for lease in leases
    ]


def unfinished_lines(leases: Sequence[OpenLease]) -> list[str]:
    """Return what was started and not finished, and what the next apply does with it."""
    if not leases:
        return []
    lines = ["", "Started and not finished:"]
    for lease in leases:
        intent, end = lease.intent, ", interrupted" if lease.interrupted else ""
        actor, start = literal(intent.holder.actor), second(intent.time)
        lines.append(f"  {intent.action} {intent.address} by {actor} since {start} UTC{end}")
    return [*lines, *_next_lines(leases)]


def _next_lines(leases: Sequence[OpenLease]) -> list[str]:
    found = {lease.interrupted for lease in leases}
    lines = [_NEXT] if True in found else []
    if None in found:
        lines.append("Of other machines, it takes over what is not renewed for 30 s.")
    return lines


def state_lines(state: State, leases: Sequence[OpenLease] = ()) -> list[str]:
    """Return a table of resources, and the open leases."""
    if not state.resources and not state.open_intents:
        return ["The state is empty."]
    rows = [
        [str(address), recorded.provider, summary(recorded)]
        for address, recorded in sorted(state.resources.items())
    ]
    lines = table(["RESOURCE", "PROVIDER", "STATE"], rows) if rows else []
    lines += unfinished_lines(leases)
    lines += ["", f"Serial {state.serial}, lineage {state.lineage}"]
    return lines


def resource_lines(recorded: RecordedResource, style: Style = plain) -> list[str]:
    """Return all values of a resource."""
    from trainctl.plan.quarantine import quarantined
    from trainctl.views.plan.changes import added_rows, brief

    values = {**recorded.outputs, **recorded.attributes}
    rows = list(added_rows({key: value for key, value in values.items() if key not in _HIDDEN}))
    size = max((display_width(row.name) for row in rows), default=0)
    lines = [style(f"{recorded.address} ({recorded.provider})", "bold")]
    lines += [f"  {pad(row.name, size)} = {brief(row.after)}" for row in rows]
    entries = quarantined(recorded)
    for node in recorded.outputs.get("nodes") or ():
        entry = entries.get(f"{recorded.address.name}/{node.get('name')}")
        status = f", quarantined: {entry.reason}" if entry else ""
        place = f"{node.get('name')} at {node.get('address')}, {node.get('root')}"
        lines.append(f"  node {escape(place + status)}")
    for run in map(RunRecord.from_json, recorded.outputs.get("runs") or ()):
        words = run.status.words + (f": {run.error}" if run.error else "")
        places = ", ".join(rank.place for rank in run.ranks)
        parts = (f"{run.number} ({run.id})", words, places, second(run.created_at))
        lines.append(f"  run {escape('  '.join(filter(None, parts)))}")
    if recorded.depends_on:
        lines.append(f"  depends on {', '.join(map(str, recorded.depends_on))}")
    if recorded.lifecycle.prevent_destroy:
        lines.append("  is protected (prevent_destroy)")
    return lines


def history_lines(
    rows: Sequence[HistoryRow], address: Address | None = None, width: int | None = None
) -> list[str]:
    """Return a table of the history, oldest first.

    ``address`` is the address of all rows, if given. Unchanged observations are omitted.
    """
    if not rows:
        return [f"No history of {address}." if address else "No history yet."]
    cells = []
    last: dict[str | None, tuple[str | None, str]] = {}
    for row in rows:
        # TRAINING_JOB_DEPLOY_FAILED is shown as "deploy failed"
        status = escape(row.status.removeprefix("TRAINING_JOB_").replace("_", " ").lower())
        words = [
            str(row.serial),
            second(row.time),
            escape(row.actor),
            row.address or "",
            escape(row.action),
            " ".join(filter(None, (status, row.run))),
            escape((row.reason or "").replace("_", " ")),
            _transfer_text(row),
        ]
        now = (row.run, row.status)
        if row.action != "observe" or row.deliveries or last.get(row.address) != now:
            cells.append(words)
        last[row.address] = now
    headers = ["SERIAL", "TIME (UTC)", "WHO", "ADDRESS", "ACTION", "STATUS", "REASON", "MOVED"]
    shrinks = {"WHO", "ADDRESS", "REASON", "MOVED"}
    lines = table(headers, cells, right={"SERIAL"}, width=width, shrinks=shrinks)
    return [*lines, "", _NEXT] if any(row.status == "interrupted" for row in rows) else lines


def _transfer_text(row: HistoryRow) -> str:
    """Format bytes mirrored, or delivered in the time of the slowest rank."""
    record = row.mirrored
    if record is not None and record.bytes:
        text = f"{format_bytes(record.bytes)} in {format_duration(record.seconds)}"
        return text + through_client_text(record.bytes_through_client)
    moved = [delivery for delivery in row.deliveries if delivery.moved]
    if not moved:
        return ""
    ranks = {delivery.rank for delivery in moved}
    by_rank = [[each for each in moved if each.rank == rank] for rank in ranks]
    slowest = max(by_rank, key=lambda of_rank: sum(each.seconds for each in of_rank))
    duration = format_duration(sum(each.seconds for each in slowest))
    text = f"{format_bytes(sum(each.moved for each in moved))} in {duration}"
    forecasts = [each.forecast_seconds for each in slowest if each.forecast_seconds is not None]
    if len(forecasts) == len(slowest):
        text += f", forecast {format_duration(sum(forecasts))}"
    return text + through_client_text(sum(each.bytes_through_client for each in moved))


def summary(recorded: RecordedResource) -> str:
    """Return the state of a resource in a few words."""
    from trainctl.plan.quarantine import quarantined
    from trainctl.views.plan.tables import short_revision

    values = {**recorded.attributes, **recorded.outputs}
    kind = recorded.address.kind
    if kind is Kind.JOB:
        runs = values.get("runs")
        newest = RunRecord.from_json(runs[-1]) if runs else None
        return f"run {newest.number} {newest.status.words}" if newest else "not run yet"
    if kind is Kind.WEIGHTS:
        revision, size = short_revision(values.get("revision")), values.get("bytes")
        if size is None or values.get("files") is None:
            return revision
        return f"{revision}, {pluralize(values['files'], 'file')}, {format_bytes(size)}"
    if kind is Kind.CLUSTER:
        barred = len(quarantined(recorded))
        count = pluralize(len(values.get("nodes") or ()), "node")
        return f"{count}, {barred} quarantined" if barred else count
    return escape(str(values.get("directory") or ""))


def resource_json(recorded: RecordedResource) -> dict[str, Any]:
    """Return the JSON of a resource."""
    return {
        "address": str(recorded.address),
        "version": recorded.version,
        **recorded_to_json(recorded),
    }


def history_json(rows: Iterable[HistoryRow]) -> dict[str, Any]:
    """Return the JSON of ``history``; times are RFC 3339 in UTC."""
    return {"entries": [{**row.to_json(), "time": format_timestamp(row.time)} for row in rows]}


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
    shrinks = headers[:1]
    lines = table(headers, cells, right=_NUMBERS, width=width, shrinks=shrinks)
    if unpriced := sum(row.unpriced_hours for row in total):
        lines += ["", f"Not in the cost: {unpriced:.1f} node hours without a price_per_hour."]
    if by == "label":
        lines += ["", "A run counts for each of its labels, and once in the total."]
    return lines


def _cells(row: UsageRow) -> list[str]:
    cost = f"{row.cost:.2f}" if row.cost or not row.unpriced_hours else "-"
    hours = (f"{row.node_hours:.1f}", f"{row.gpu_hours:.1f}")
    return [escape(row.name) or "(none)", str(row.runs), *hours, cost]
