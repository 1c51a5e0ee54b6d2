"""What became of nodes' caches of weights, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.model.node_cache import CachedListing, CacheReport
from trainctl.views.escape import escape
from trainctl.views.moments import minute, moment
from trainctl.views.text import counted, table, warned

EVICT_COLUMNS = ("node", "id", "source", "files", "bytes", "last_used", "leased_by", "outcome")
VERIFY_COLUMNS = ("node", "id", "source", "files", "bytes", "outcome", "wrong_files", "detail")


def evict_json(report: CacheReport, *, dry_run: bool) -> dict[str, Any]:
    """The form of ``cache evict --format json``."""
    return {
        "dry_run": dry_run,
        "freed": report.freed,
        "listings": cache_rows(report, EVICT_COLUMNS),
        "silent": silent_rows(report),
    }


def verify_json(report: CacheReport) -> dict[str, Any]:
    """The form of ``cache verify --format json``."""
    return {
        "bytes": report.hashed,
        "freed": report.freed,
        "listings": cache_rows(report, VERIFY_COLUMNS),
        "silent": silent_rows(report),
    }


def silent_rows(report: CacheReport) -> list[dict[str, str]]:
    """The nodes that could not be asked."""
    return [{"node": node, "why": why} for node, why in report.silent]


def silent_lines(report: CacheReport) -> list[str]:
    """A warning for each of them."""
    return [
        warned(f"{node} could not be asked: {escape(why)}", code="node-unreachable")
        for node, why in report.silent
    ]


def cache_rows(report: CacheReport, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The listings with just these members."""
    return [{name: _form(row)[name] for name in columns} for row in report.listings]


def evict_lines(report: CacheReport, *, dry_run: bool, width: int | None = None) -> list[str]:
    """A line for each listing, then what was freed."""
    if not report.listings and not report.freed:
        return ["Nothing to evict."]
    said = {"evicted": "would go"} if dry_run else {}
    cells = [
        [
            *_first(row),
            minute(row.last_used),
            said.get(row.outcome, row.outcome),
            ", ".join(map(escape, row.leased_by)),
        ]
        for row in report.listings
    ]
    headers = ["NODE", "LISTING", "SOURCE", "SIZE", "LAST USED (UTC)", "OUTCOME", "NEEDED BY"]
    lines = table(headers, cells, width=width, right=frozenset({"SIZE"}), shrinks=_SHRINKS)
    return lines if dry_run else [*lines, "", f"{format_bytes(report.freed)} freed."]


def verify_lines(report: CacheReport, width: int | None = None) -> list[str]:
    """A line for each listing, what was wrong with those that were, and the counts."""
    if not report.listings:
        return ["Nothing is cached."]
    cells = [[*_first(row), row.outcome, escape(row.detail)] for row in report.listings]
    headers = ["NODE", "LISTING", "SOURCE", "SIZE", "OUTCOME", "DETAIL"]
    lines = table(headers, cells, width=width, right=frozenset({"SIZE"}), shrinks=_SHRINKS)
    for row in report.listings:
        lines += [f"  {row.node}: {escape(name)} was wrong" for name in row.wrong_files]
    count = counted(len(report.listings), "listing")
    return [*lines, "", f"{count} verified, {format_bytes(report.hashed)}."]


_SHRINKS = frozenset({"SOURCE", "NEEDED BY", "DETAIL"})


def _first(row: CachedListing) -> list[str]:
    return [row.node, row.id[:12], escape(row.source), format_bytes(row.bytes)]


def _form(row: CachedListing) -> dict[str, Any]:
    found = {**asdict(row), "last_used": moment(row.last_used)}
    return {**found, "leased_by": list(row.leased_by), "wrong_files": list(row.wrong_files)}
