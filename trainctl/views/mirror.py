"""What a mirror holds, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.store import keys
from trainctl.store.maintenance.gc import GcReport
from trainctl.store.maintenance.inventory import InventoryRow, MirrorInventory
from trainctl.store.maintenance.verify import Finding, FindingOutcome, VerifyReport
from trainctl.store.references import StoredReference
from trainctl.views.plan.tables import short_revision
from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import format_minute, format_timestamp, pluralize

MIRROR_COLUMNS = (
    "source", "revision", "listing", "files", "bytes", "bytes_shared", "bytes_stored", "last_used", "projects", "users", "endpoint", "listing_status",
)  # fmt: skip


def mirror_json(found: MirrorInventory) -> dict[str, Any]:
    """The object that CONTRACT's ``mirror list --format json`` describes."""
    return {
        "sources": [_row_json(row) for row in found.rows],
        "bytes_stored": sum(row.bytes_stored for row in found.rows),
        "bytes_saved": sum(row.bytes_saved for row in found.rows),
        "bytes_unfinished": found.unfinished,
        "bytes_unreferenced": found.unreferenced,
    }


def _row_json(row: InventoryRow) -> dict[str, Any]:
    form = {
        **row._asdict(),
        "last_used": format_timestamp(row.last_used),
        "listing_status": _listing_status(row),
    }
    return {name: form[name] for name in MIRROR_COLUMNS}


def mirror_lines(found: MirrorInventory, width: int | None = None) -> list[str]:
    """A line for each source, and what all of them take; in so many columns if they must fit, where the last columns may be missing."""
    if not found.rows:
        is_empty = not (found.unfinished or found.unreferenced)
        return ["The mirror is empty." if is_empty else _total_lines(found)]
    return [*_table(found.rows, width), "", _total_lines(found)]


def _table(rows: Sequence[InventoryRow], width: int | None) -> list[str]:
    headers = ["SOURCE", "SERVER", "REVISION", "FILES", "SIZE", "SHARED", _USED, "PROJECTS", "PEOPLE"]  # fmt: skip
    cells = [_cells(row, server) for row, server in zip(rows, _servers(rows), strict=True)]
    return table(
        headers,
        cells,
        width=width,
        right=frozenset({"FILES", "SIZE", "SHARED"}),
        shrinks=frozenset(_NARROWEST),
        narrowest=_NARROWEST,
        drops=("PEOPLE", "PROJECTS", _USED, "REVISION"),
    )


_COMPLETE = "complete"
_USED = "LAST USED (UTC)"
_NARROWEST = {"SOURCE": 32, "KEPT": 32, "PROJECT": 10, "PROJECTS": 10, "OWNER": 10, "PEOPLE": 10}
"""Narrower than that they would tell nothing."""


def _listing_status(row: InventoryRow) -> str:
    return row.listing_status or (_COMPLETE if row.listing else "incomplete")


def lost_listing_lines(rows: Sequence[InventoryRow]) -> list[str]:
    """What to do about each listing that is lost, a warning each."""
    return [
        f"the listing of {row.source} is {row.listing_status} ({row.listing}): the next apply of a project that uses it repairs it"
        for row in rows
        if row.listing_status
    ]


def _cells(row: InventoryRow, server: str) -> list[str]:
    is_whole = _listing_status(row) == _COMPLETE
    return [
        row.source,
        server,
        short_revision(row.revision),
        str(row.files),
        format_bytes(row.bytes),
        format_bytes(row.bytes_shared) if is_whole else _listing_status(row),
        format_minute(row.last_used),
        ", ".join(row.projects),
        ", ".join(row.users),
    ]


def _servers(rows: Sequence[InventoryRow]) -> Iterator[str]:
    """For each row the server, where its URI stands for sources of several."""
    servers: dict[str, set[str | None]] = {}
    for row in rows:
        servers.setdefault(row.source, set()).add(row.endpoint)
    for row in rows:
        said = (row.endpoint or "its own").removeprefix("https://")
        yield said if len(servers[row.source]) > 1 else ""


def _total_lines(found: MirrorInventory) -> str:
    stored = format_bytes(sum(row.bytes_stored for row in found.rows))
    saved = sum(row.bytes_saved for row in found.rows)
    coming, left = found.unfinished, found.unreferenced
    by_sharing = f", {format_bytes(saved)} saved by deduplication" if saved else ""
    of_parts = f", {format_bytes(coming)} of incomplete sources" if coming else ""
    unused = f", {format_bytes(left)} unreferenced" if left else ""
    hint = " Run trainctl mirror gc to delete unreferenced blobs." if left else ""
    return f"{stored} stored{by_sharing}{of_parts}{unused}.{hint}"


_MOST_LINES = 1000
"""Findings that are shown to people."""
FINDING_COLUMNS = ("path", "problem", "bytes", "sources", "outcome", "detail")
GC_COLUMNS = (
    "action", "source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage", "last_used",
)  # fmt: skip


def mirror_verify_json(report: VerifyReport) -> dict[str, Any]:
    """The form of ``mirror verify --format json``."""
    return {
        "ok": report.ok,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "findings": [finding_json(finding) for finding in report.findings],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One thing that was wrong."""
    form = {"path": finding.key, **asdict(finding), "outcome": finding.outcome.value}
    return {name: form[name] for name in FINDING_COLUMNS}


def mirror_verify_lines(report: VerifyReport, width: int | None = None) -> list[str]:
    """What was wrong, as far as somebody may want to read it, and the counts."""
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
        shrinks = frozenset({"SOURCES", "DETAIL"})
        lines = [*table(headers, cells, width=width, shrinks=shrinks), ""]
    more = len(report.findings) - _MOST_LINES
    if more > 0:
        lines[-1:] = [f"and {more} more; use --format json or csv to list all.", ""]
    looked = f"{pluralize(report.blobs, 'blob')} verified, {format_bytes(report.bytes)}"
    return [*lines, f"{looked}: {_verify_summary(report.findings)}"]


def _verify_summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no problems found."
    counts = Counter(finding.outcome.value for finding in findings)
    said = ", ".join(f"{counts[one]} {one}" for one in ("corrupt", "removed") if counts[one])
    hints = (
        " Run trainctl mirror verify --repair to delete corrupt blobs." if counts["corrupt"] else ""
    )
    if any(finding.sources for finding in findings if finding.outcome is FindingOutcome.REMOVED):
        hints += " The next apply downloads the deleted blobs again."
    return f"{said}.{hints}"


def gc_json(report: GcReport) -> dict[str, Any]:
    """The form of ``mirror gc --format json``."""
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
        "dropped": [_reference_json(one) for one in report.dropped],
        "kept": [_reference_json(one) for one in report.kept],
        "busy": [_reference_json(one) for one in report.busy],
    }


def gc_rows(report: GcReport) -> list[dict[str, Any]]:
    """The same as one list of rows, each with what became of it."""
    form = gc_json(report)
    return [
        {"action": name, **row}
        for name in ("removed", "dropped", "kept", "busy")
        for row in form[name]
    ]


def gc_lines(report: GcReport, width: int | None = None) -> list[str]:
    """What was dropped, what is kept for whom, and what was freed."""
    lines = [
        f"Dropped, not used since {format_minute(one.last_used)} UTC: {_reference_owner(one)}"
        for one in report.dropped
    ]
    if report.kept:
        lines += table(
            ["KEPT", "REVISION", "SIZE", "PROJECT", "OWNER", _USED],
            [_kept_cells(one) for one in report.kept],
            width=width,
            right=frozenset({"SIZE"}),
            shrinks=frozenset(_NARROWEST),
            narrowest=_NARROWEST,
            drops=("OWNER", "REVISION", _USED),
        )
    lines += [
        f"Being mirrored: {_reference_owner(one)}. No blobs were deleted; try again later."
        for one in report.busy
    ]
    done = "would be deleted" if report.dry_run else "freed"
    problem = f"{pluralize(report.blobs, 'blob')} of {pluralize(len(report.listings), 'listing')}"
    return [*lines, *([""] if lines else []), f"{format_bytes(report.bytes)} {done}: {problem}."]


def _kept_cells(need: StoredReference) -> list[str]:
    record = need.record
    return [
        escape(str(record.get("source"))),
        short_revision(str(record.get("revision"))),
        format_bytes(int(record.get("bytes") or 0)),
        escape(str(record.get("project"))),
        escape(str(record.get("owner"))),
        format_minute(need.last_used),
    ]


def _reference_owner(need: StoredReference) -> str:
    record = need.record
    return escape(
        f"{record.get('source')} for {record.get('address')} of {record.get('project')} ({record.get('owner')})"
    )


def _reference_json(need: StoredReference) -> dict[str, Any]:
    record = need.record
    named = ("source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage")  # fmt: skip
    return {
        **{name: record.get(name) for name in named},
        "last_used": format_timestamp(need.last_used),
    }
