"""What a mirror holds, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.store import keys
from trainctl.store.gc import GcReport
from trainctl.store.inventory import Inventory, Row
from trainctl.store.references import StoredReference
from trainctl.store.verify import Finding, Outcome, VerifyReport
from trainctl.views.plan.tables import short_revision
from trainctl.views.terminal.escape import escape
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import counted, minute, moment

MIRROR_COLUMNS = (
    "source", "revision", "listing", "files", "bytes", "bytes_shared", "bytes_stored", "last_used", "projects", "people", "endpoint", "listing_is",
)  # fmt: skip


def mirror_json(found: Inventory) -> dict[str, Any]:
    """The object that CONTRACT's ``mirror list --format json`` describes."""
    return {
        "sources": [_row_json(row) for row in found.rows],
        "bytes_stored": sum(row.bytes_stored for row in found.rows),
        "bytes_saved": sum(row.bytes_saved for row in found.rows),
        "bytes_unfinished": found.unfinished,
        "bytes_unreferenced": found.unreferenced,
    }


def _row_json(row: Row) -> dict[str, Any]:
    form = {**row._asdict(), "last_used": moment(row.last_used), "listing_is": _listing_is(row)}
    return {name: form[name] for name in MIRROR_COLUMNS}


def mirror_lines(found: Inventory, width: int | None = None) -> list[str]:
    """A line for each source, and what all of them take; in so many columns if they must fit, where the last columns may be missing."""
    if not found.rows:
        is_empty = not (found.unfinished or found.unreferenced)
        return ["The mirror is empty." if is_empty else _total(found)]
    return [*_table(found.rows, width), "", _total(found)]


def _table(rows: Sequence[Row], width: int | None) -> list[str]:
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


_WHOLE = "whole"
_USED = "LAST USED (UTC)"
_NARROWEST = {"SOURCE": 32, "KEPT": 32, "PROJECT": 10, "PROJECTS": 10, "OWNER": 10, "PEOPLE": 10}
"""Narrower than that they would tell nothing."""


def _listing_is(row: Row) -> str:
    return row.listing_is or (_WHOLE if row.listing else "not whole")


def lost_lines(rows: Sequence[Row]) -> list[str]:
    """What to do about each listing that is lost, a warning each."""
    return [
        f"the listing of {row.source} is {row.listing_is} ({row.listing}): the next apply in a project that needs it copies what is missing"
        for row in rows
        if row.listing_is
    ]


def _cells(row: Row, server: str) -> list[str]:
    is_whole = _listing_is(row) == _WHOLE
    return [
        row.source,
        server,
        short_revision(row.revision),
        str(row.files),
        format_bytes(row.bytes),
        format_bytes(row.bytes_shared) if is_whole else _listing_is(row),
        minute(row.last_used),
        ", ".join(row.projects),
        ", ".join(row.people),
    ]


def _servers(rows: Sequence[Row]) -> Iterator[str]:
    """For each row the server, where its URI stands for sources of several."""
    servers: dict[str, set[str | None]] = {}
    for row in rows:
        servers.setdefault(row.source, set()).add(row.endpoint)
    for row in rows:
        said = (row.endpoint or "its own").removeprefix("https://")
        yield said if len(servers[row.source]) > 1 else ""


def _total(found: Inventory) -> str:
    stored = format_bytes(sum(row.bytes_stored for row in found.rows))
    saved = sum(row.bytes_saved for row in found.rows)
    coming, left = found.unfinished, found.unreferenced
    by_sharing = f", {format_bytes(saved)} saved by sharing" if saved else ""
    of_parts = f", {format_bytes(coming)} of what isn't whole" if coming else ""
    unused = f", {format_bytes(left)} that nothing refers to" if left else ""
    hint = " trainctl mirror gc deletes that." if left else ""
    return f"{stored} stored{by_sharing}{of_parts}{unused}.{hint}"


_MOST_LINES = 1000
"""Findings that are shown to people."""
FINDING_COLUMNS = ("path", "what", "bytes", "sources", "outcome", "detail")
GC_COLUMNS = (
    "action", "source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage", "last_used",
)  # fmt: skip


def verified_json(report: VerifyReport) -> dict[str, Any]:
    """The form of ``mirror verify --format json``."""
    return {
        "whole": report.whole,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "findings": [finding_json(finding) for finding in report.findings],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One thing that was wrong."""
    form = {"path": finding.key, **asdict(finding), "outcome": finding.outcome.value}
    return {name: form[name] for name in FINDING_COLUMNS}


def verified_lines(report: VerifyReport, width: int | None = None) -> list[str]:
    """What was wrong, as far as somebody may want to read it, and the counts."""
    lines: list[str] = []
    if report.findings:
        cells = [
            [
                keys.stem(finding.key)[:12],
                finding.what,
                format_bytes(finding.bytes),
                finding.outcome.value,
                escape(", ".join(finding.sources)),
                escape(finding.detail),
            ]
            for finding in islice(report.findings, _MOST_LINES)
        ]
        headers = ["CONTENT", "WHAT", "SIZE", "OUTCOME", "SOURCES", "DETAIL"]
        shrinks = frozenset({"SOURCES", "DETAIL"})
        lines = [*table(headers, cells, width=width, shrinks=shrinks), ""]
    more = len(report.findings) - _MOST_LINES
    if more > 0:
        lines[-1:] = [f"and {more} more, which --format json or csv name.", ""]
    looked = f"{counted(report.blobs, 'content')} verified, {format_bytes(report.bytes)}"
    return [*lines, f"{looked}: {_verdict(report.findings)}"]


def _verdict(findings: Sequence[Finding]) -> str:
    if not findings:
        return "all right."
    counts = Counter(one.outcome.value for one in findings)
    said = ", ".join(f"{counts[one]} {one}" for one in ("wrong", "removed") if counts[one])
    hints = " mirror verify --repair deletes what is wrong." if counts["wrong"] else ""
    if any(one.sources for one in findings if one.outcome is Outcome.REMOVED):
        hints += " The next apply fetches what was removed again."
    return f"{said}.{hints}"


def collected_json(report: GcReport) -> dict[str, Any]:
    """The form of ``mirror gc --format json``."""
    return {
        "dry_run": report.dry_run,
        "freed": {
            "bytes": report.bytes,
            "blobs": report.blobs,
            "listings": len(report.listings),
        },
        "removed": [
            {"listing": one.listing, "files": one.files, "bytes": one.bytes}
            for one in report.listings
        ],
        "dropped": [_need(one) for one in report.dropped],
        "kept": [_need(one) for one in report.kept],
        "busy": [_need(one) for one in report.busy],
    }


def collected_rows(report: GcReport) -> list[dict[str, Any]]:
    """The same as one list of rows, each with what became of it."""
    form = collected_json(report)
    return [
        {"action": name, **row}
        for name in ("removed", "dropped", "kept", "busy")
        for row in form[name]
    ]


def collected_lines(report: GcReport, width: int | None = None) -> list[str]:
    """What was dropped, what is kept for whom, and what was freed."""
    lines = [
        f"Not used since {minute(one.last_used)} UTC, dropped: {_whose(one)}"
        for one in report.dropped
    ]
    if report.kept:
        lines += table(
            ["KEPT", "REVISION", "SIZE", "PROJECT", "OWNER", _USED],
            [_kept(one) for one in report.kept],
            width=width,
            right=frozenset({"SIZE"}),
            shrinks=frozenset(_NARROWEST),
            narrowest=_NARROWEST,
            drops=("OWNER", "REVISION", _USED),
        )
    lines += [
        f"Being mirrored now: {_whose(one)}. No content goes meanwhile; try again later."
        for one in report.busy
    ]
    done = "would be freed" if report.dry_run else "freed"
    what = f"{counted(report.blobs, 'content')} of {counted(len(report.listings), 'listing')}"
    return [*lines, *([""] if lines else []), f"{format_bytes(report.bytes)} {done}: {what}."]


def _kept(need: StoredReference) -> list[str]:
    record = need.record
    return [
        escape(str(record.get("source"))),
        short_revision(str(record.get("revision"))),
        format_bytes(int(record.get("bytes") or 0)),
        escape(str(record.get("project"))),
        escape(str(record.get("owner"))),
        minute(need.last_used),
    ]


def _whose(need: StoredReference) -> str:
    record = need.record
    return escape(
        f"{record.get('source')} for {record.get('address')} of {record.get('project')} ({record.get('owner')})"
    )


def _need(need: StoredReference) -> dict[str, Any]:
    record = need.record
    named = ("source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage")  # fmt: skip
    return {**{name: record.get(name) for name in named}, "last_used": moment(need.last_used)}
