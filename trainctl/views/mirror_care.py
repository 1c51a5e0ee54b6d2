"""What verifying and collecting did to a mirror, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.store import keys
from trainctl.store.gc import GcReport
from trainctl.store.references import StoredReference
from trainctl.store.verify import Finding, Outcome, VerifyReport
from trainctl.views.plan.tables import short_revision
from trainctl.views.terminal.escape import escape
from trainctl.views.terminal.tables import chosen, table, table_of
from trainctl.views.terminal.text import counted, minute, moment

_MOST_LINES = 1000
"""Findings that are shown to people."""
FINDING_COLUMNS = ("path", "what", "bytes", "sources", "outcome", "detail")
GC_COLUMNS = (
    "action", "source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage", "last_used",
)  # fmt: skip


def verified_json(report: VerifyReport) -> dict[str, Any]:
    """The form of ``mirror verify --format json`` but for its ``findings``, of which there may be very many."""
    return {"whole": report.whole, "blobs": report.blobs, "bytes": report.bytes}


def finding_json(finding: Finding) -> dict[str, Any]:
    """One thing that was wrong."""
    return {
        "path": finding.key,
        "what": finding.what,
        "bytes": finding.bytes,
        "sources": list(finding.sources),
        "outcome": finding.outcome.value,
        "detail": finding.detail,
    }


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
        cells = _kept(report.kept)
        headers = chosen(_CHOICES, cells, width, _NARROWEST)
        lines += table_of(headers, cells, width, _NARROWEST, right=frozenset({"SIZE"}))
    lines += [
        f"Being mirrored now: {_whose(one)}. No content goes meanwhile; try again later."
        for one in report.busy
    ]
    done = "would be freed" if report.dry_run else "freed"
    what = f"{counted(report.blobs, 'content')} of {counted(len(report.listings), 'listing')}"
    return [*lines, *([""] if lines else []), f"{format_bytes(report.bytes)} {done}: {what}."]


_CHOICES = (
    ("KEPT", "REVISION", "SIZE", "PROJECT", "OWNER", "LAST USED (UTC)"),
    ("KEPT", "REVISION", "SIZE", "PROJECT", "LAST USED (UTC)"),
    ("KEPT", "REVISION", "SIZE", "PROJECT", "LAST USED/by day"),
    ("KEPT", "REVISION", "SIZE", "PROJECT"),
    ("KEPT", "SIZE", "PROJECT"),
)
_NARROWEST = {"KEPT": 32, "PROJECT": 10, "OWNER": 10}


def _kept(needs: Sequence[StoredReference]) -> dict[str, list[str]]:
    """The cells of what is kept: for which project most of all."""

    def said(name: str) -> list[str]:
        return [escape(str(one.record.get(name))) for one in needs]

    used = [minute(one.last_used) for one in needs]
    return {
        "KEPT": said("source"),
        "REVISION": [short_revision(str(one.record.get("revision"))) for one in needs],
        "SIZE": [format_bytes(int(one.record.get("bytes") or 0)) for one in needs],
        "PROJECT": said("project"),
        "OWNER": said("owner"),
        "LAST USED (UTC)": used,
        "LAST USED/by day": [one.partition(" ")[0] for one in used],
    }


def _whose(need: StoredReference) -> str:
    record = need.record
    return escape(
        f"{record.get('source')} for {record.get('address')} of {record.get('project')} ({record.get('owner')})"
    )


def _need(need: StoredReference) -> dict[str, Any]:
    record = need.record
    named = ("source", "revision", "listing", "files", "bytes", "project", "owner", "address", "lineage")  # fmt: skip
    return {**{name: record.get(name) for name in named}, "last_used": moment(need.last_used)}
