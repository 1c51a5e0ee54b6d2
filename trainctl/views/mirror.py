"""Format reports about a mirror: list, verify, gc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.model.json_codec import to_json
from trainctl.store import keys
from trainctl.store.gc import GcReport
from trainctl.store.references import StoredReference
from trainctl.store.survey import InventoryRow, MirrorInventory
from trainctl.store.verify import Finding, FindingOutcome, VerifyReport
from trainctl.views.plan.tables import short_revision
from trainctl.views.terminal.text import escape, format_minute, format_timestamp, pluralize, table

MIRROR_COLUMNS = (
    "source", "revision", "listing", "files", "bytes", "bytes_shared", "bytes_stored", "last_used", "projects", "users", "endpoint", "listing_status",
)  # fmt: skip


def mirror_json(inventory: MirrorInventory) -> dict[str, Any]:
    """Return the JSON of ``mirror list``."""
    forms = (
        {
            **row._asdict(),
            "last_used": format_timestamp(row.last_used),
            "listing_status": _listing_status(row),
        }
        for row in inventory.rows
    )
    return {
        "sources": [{name: form[name] for name in MIRROR_COLUMNS} for form in forms],
        "bytes_stored": sum(row.bytes_stored for row in inventory.rows),
        "bytes_saved": sum(row.bytes_saved for row in inventory.rows),
        "bytes_unfinished": inventory.unfinished,
        "bytes_unreferenced": inventory.unreferenced,
    }


def mirror_lines(inventory: MirrorInventory, width: int | None = None) -> list[str]:
    """Return a table of the sources, and the totals."""
    if not inventory.rows:
        is_empty = not (inventory.unfinished or inventory.unreferenced)
        return ["The mirror is empty." if is_empty else _total_lines(inventory)]
    headers = ["SOURCE", "SERVER", "REVISION", "FILES", "SIZE", "SHARED", _USED, "PROJECTS", "PEOPLE"]  # fmt: skip
    servers: dict[str, set[str | None]] = {}
    for row in inventory.rows:
        servers.setdefault(row.source, set()).add(row.endpoint)
    lines = table(
        headers,
        [_cells(row, names_server=len(servers[row.source]) > 1) for row in inventory.rows],
        width=width,
        right={"FILES", "SIZE", "SHARED"},
        narrowest=_NARROWEST,
        drops=("PEOPLE", "PROJECTS", _USED, "REVISION"),
    )
    return [*lines, "", _total_lines(inventory)]


_COMPLETE = "complete"
_USED = "LAST USED (UTC)"
_NARROWEST = {"SOURCE": 32, "KEPT": 32, "PROJECT": 10, "PROJECTS": 10, "OWNER": 10, "PEOPLE": 10}
"""Minimum column widths."""


def _listing_status(row: InventoryRow) -> str:
    return row.listing_status or (_COMPLETE if row.listing else "incomplete")


def lost_listing_lines(rows: Sequence[InventoryRow]) -> list[str]:
    """Return a warning for each lost listing."""
    return [
        f"the listing of {row.source} is {row.listing_status} ({row.listing}): the next apply of a project that uses it repairs it"
        for row in rows
        if row.listing_status
    ]


def _cells(row: InventoryRow, *, names_server: bool) -> list[str]:
    is_complete = _listing_status(row) == _COMPLETE
    return [
        row.source,
        (row.endpoint or "its own").removeprefix("https://") if names_server else "",
        short_revision(row.revision),
        str(row.files),
        format_bytes(row.bytes),
        format_bytes(row.bytes_shared) if is_complete else _listing_status(row),
        format_minute(row.last_used),
        ", ".join(row.projects),
        ", ".join(row.users),
    ]


def _total_lines(inventory: MirrorInventory) -> str:
    stored = format_bytes(sum(row.bytes_stored for row in inventory.rows))
    saved = sum(row.bytes_saved for row in inventory.rows)
    unfinished, unreferenced = inventory.unfinished, inventory.unreferenced
    saved_text = f", {format_bytes(saved)} saved by deduplication" if saved else ""
    unfinished_text = f", {format_bytes(unfinished)} of incomplete sources" if unfinished else ""
    unreferenced_text = f", {format_bytes(unreferenced)} unreferenced" if unreferenced else ""
    hint = " Run trainctl mirror gc to delete unreferenced blobs." if unreferenced else ""
    return f"{stored} stored{saved_text}{unfinished_text}{unreferenced_text}.{hint}"


_MOST_LINES = 1000
"""Maximum number of findings in text."""
FINDING_COLUMNS = ("path", "problem", "bytes", "sources", "outcome", "detail")
_RECORD = ("source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage")  # fmt: skip
GC_COLUMNS = ("action", *_RECORD, "last_used")


def mirror_verify_json(report: VerifyReport) -> dict[str, Any]:
    """Return the JSON of ``mirror verify``."""
    return {
        "ok": report.ok,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "findings": [
            {"path": finding.key, **{name: form[name] for name in FINDING_COLUMNS[1:]}}
            for finding in report.findings
            for form in [to_json(finding)]
        ],
    }


def mirror_verify_lines(report: VerifyReport, width: int | None = None) -> list[str]:
    """Return a table of the first findings, and the counts."""
    lines: list[str] = []
    if report.findings:
        cells = [
            [
                keys.key_stem(finding.key)[:12],
                finding.problem,
                format_bytes(finding.bytes),
                finding.outcome.value,
                escape(", ".join(finding.sources)),
                escape(finding.detail),
            ]
            for finding in islice(report.findings, _MOST_LINES)
        ]
        headers = ["BLOB", "PROBLEM", "SIZE", "OUTCOME", "SOURCES", "DETAIL"]
        shrinks = {"SOURCES", "DETAIL"}
        lines = [*table(headers, cells, width=width, shrinks=shrinks), ""]
    more = len(report.findings) - _MOST_LINES
    if more > 0:
        lines[-1:] = [f"and {more} more; use --format json or csv to list all.", ""]
    verified = f"{pluralize(report.blobs, 'blob')} verified, {format_bytes(report.bytes)}"
    return [*lines, f"{verified}: {_verify_summary(report.findings)}"]


def _verify_summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no problems found."
    counts = Counter(finding.outcome.value for finding in findings)
    text = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("corrupt", "removed") if counts[outcome]
    )
    hints = (
        " Run trainctl mirror verify --repair to delete corrupt blobs." if counts["corrupt"] else ""
    )
    if any(finding.sources for finding in findings if finding.outcome is FindingOutcome.REMOVED):
        hints += " The next apply downloads the deleted blobs again."
    return f"{text}.{hints}"


def gc_json(report: GcReport) -> dict[str, Any]:
    """Return the JSON of ``mirror gc``."""
    return {
        "dry_run": report.dry_run,
        "freed": {
            "bytes": report.bytes,
            "blobs": report.blobs,
            "listings": len(report.listings),
        },
        "removed": [
            {"listing": listing.listing, "files": listing.files, "bytes": listing.bytes}
            for listing in report.listings
        ],
        **{
            name: [
                {
                    **{key: reference.record.get(key) for key in _RECORD},
                    "last_used": format_timestamp(reference.last_used),
                }
                for reference in getattr(report, name)
            ]
            for name in ("dropped", "kept", "busy")
        },
    }


def gc_rows(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the CSV rows of the JSON of ``mirror gc``, with an ``action`` column."""
    return [
        {"action": name, **row}
        for name in ("removed", "dropped", "kept", "busy")
        for row in form[name]
    ]


def gc_lines(report: GcReport, width: int | None = None) -> list[str]:
    """Return dropped references, a table of kept references, and bytes freed."""
    lines = [
        f"Dropped, not used since {format_minute(reference.last_used)} UTC: {_reference_owner(reference)}"
        for reference in report.dropped
    ]
    if report.kept:
        lines += table(
            ["KEPT", "REVISION", "SIZE", "PROJECT", "OWNER", _USED],
            [
                [
                    escape(str(reference.record.get("source"))),
                    short_revision(str(reference.record.get("revision"))),
                    format_bytes(int(reference.record.get("bytes") or 0)),
                    escape(str(reference.record.get("project"))),
                    escape(str(reference.record.get("owner"))),
                    format_minute(reference.last_used),
                ]
                for reference in report.kept
            ],
            width=width,
            right={"SIZE"},
            narrowest=_NARROWEST,
            drops=("OWNER", "REVISION", _USED),
        )
    lines += [
        f"Being mirrored: {_reference_owner(reference)}. No blobs were deleted; try again later."
        for reference in report.busy
    ]
    verb = "would be deleted" if report.dry_run else "freed"
    amount = f"{pluralize(report.blobs, 'blob')} of {pluralize(len(report.listings), 'listing')}"
    return [*lines, *([""] if lines else []), f"{format_bytes(report.bytes)} {verb}: {amount}."]


def _reference_owner(reference: StoredReference) -> str:
    record = reference.record
    return escape(
        f"{record.get('source')} for {record.get('address')} of {record.get('project')} ({record.get('owner')})"
    )
