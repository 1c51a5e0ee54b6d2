"""Training caches and nodes' caches of weights, for people and as JSON."""

from __future__ import annotations

import heapq
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.model.reports import (
    CacheClearResult,
    CachedFile,
    CachedListingReport,
    CacheReport,
    CacheUsage,
    UnreachableNode,
)
from trainctl.views.terminal.sanitize import escape
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import (
    format_minute,
    format_timestamp,
    pluralize,
    second,
    warning_text,
)

MOST_ROWS = 1000
"""Lines of a table that people may still read."""

_HEADERS = ("File Path", "Size (bytes)", "Size (human readable)", "Modified", "Type", "Permissions")
_UNITS = ("KB", "MB", "GB", "TB")
_SORT_KEYS: dict[str, Callable[[CachedFile], Any]] = {
    "filepath": lambda one: one.path,
    "size": lambda one: (one.size, one.path),
    "modified": lambda one: (one.modified, one.path),
    "type": lambda one: (file_type(one.mode), one.path),
    "permissions": lambda one: (stat.filemode(one.mode), one.path),
}


def decimal_size(count: int) -> str:
    """``1.52 GB``: the service's way, decimal with two digits; ``512 B`` below a thousand."""
    if count < 1000:
        return f"{count} B"
    power = next((at for at in range(1, len(_UNITS)) if count < 999.995 * 1000**at), len(_UNITS))
    return f"{count / 1000**power:.2f} {_UNITS[power - 1]}"


def file_type(mode: int) -> str:
    """``file``, ``directory``, ``symlink`` or ``other``."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return kinds.get(stat.S_IFMT(mode), "other")


def cache_json(
    found: CacheUsage | None,
    project_id: str,
    sort: str,
    unreachable: Sequence[UnreachableNode] = (),
    *,
    descending: bool,
) -> dict[str, Any]:
    """The service's object, with the cache's address, node, directory and limit; totals of nothing where there is no cache."""
    size = found.bytes if found else 0
    return {
        "timestamp": format_timestamp(found.at) if found else None,
        "project_id": project_id,
        "total_files": found.files if found else 0,
        "total_size_bytes": size,
        "total_size_human_readable": decimal_size(size),
        "files": [_file_json(one) for one in _sorted(found, sort, descending)] if found else [],
        "cache": found.address if found else None,
        "node": found.node if found else None,
        "directory": found.directory if found else None,
        "limit_bytes": found.limit if found else None,
        "unreachable": [{"node": one.node, "reason": one.why} for one in unreachable],
    }


def cache_csv(
    found: CacheUsage | None, sort: str, *, descending: bool
) -> tuple[Sequence[str], Iterator[dict[str, Any]]]:
    """The hosted service's columns, and a row for each entry."""
    entries = _sorted(found, sort, descending) if found else []
    cells = ([escape(entry.path), entry.size, *_cells(entry)] for entry in entries)
    return _HEADERS, (dict(zip(_HEADERS, row, strict=True)) for row in cells)


def cache_lines(
    found: CacheUsage, project_id: str, sort: str, *, descending: bool, width: int | None
) -> list[str]:
    """Totals, then a table of the first entries in that order."""
    head = [
        f"{found.address}: {escape(found.directory)}",
        f"Snapshot of {second(found.at)} UTC, project {project_id}",
        f"{pluralize(found.files, 'file')}, {decimal_size(found.bytes)} in total",
        "",
    ]
    if not found.entries:
        return head[:-1]
    shown = _first_entries(found, sort, descending)
    rows = [[escape(one.path), *_cells(one)] for one in shown]
    headers = ["File Path", "Size", "Modified", "Type", "Permissions"]
    lines = table(
        headers, rows, right=frozenset({"Size"}), width=width, shrinks=frozenset({"File Path"})
    )
    left = len(found.entries) - len(shown)
    more = [f"… and {left} more: use -o csv or -o json to list all."] if left else []
    return [*head, *lines, *more]


def other_node_lines(found: CacheUsage, unreachable: Sequence[UnreachableNode]) -> list[str]:
    """Of each node that was to tell and is away a warning that says whose answer this is instead."""
    return [
        warning_text(
            f"{escape(one.why)}: shown is the cache of {found.node}", code="node-unreachable"
        )
        for one in unreachable
    ]


def cache_full_warning(found: CacheUsage) -> str | None:
    """What is said of a cache that holds more than it is meant to."""
    if found.limit is None or found.bytes <= found.limit:
        return None
    return f"{found.address} contains {decimal_size(found.bytes)}, more than its size limit of {decimal_size(found.limit)}"


def cleared_json(done: CacheClearResult) -> dict[str, Any]:
    """The object of ``cache clear --format json``."""
    return asdict(done)


def cleared_lines(done: CacheClearResult) -> list[str]:
    """What went, or would."""
    if not (done.files or done.left):
        return [f"Nothing to remove in {escape(done.directory)}."]
    method = "Would remove" if done.dry_run else "Removed"
    what = f"{pluralize(done.files, 'file')}, {format_bytes(done.bytes)}"
    lines = [f"{method} {what} from {escape(done.directory)}."]
    if done.left:
        lines.append(f"{pluralize(done.left, 'file')} not removed: owned by another user.")
    return lines


def _cells(one: CachedFile) -> list[str]:
    return [
        decimal_size(one.size),
        format_timestamp(one.modified) or "",
        file_type(one.mode),
        stat.filemode(one.mode),
    ]


def _file_json(one: CachedFile) -> dict[str, Any]:
    return {
        "path": one.path,
        "size_bytes": one.size,
        "size_human_readable": decimal_size(one.size),
        "modified": format_timestamp(one.modified),
        "type": file_type(one.mode),
        "permissions": stat.filemode(one.mode),
    }


def _sorted(found: CacheUsage, sort: str, descending: bool) -> list[CachedFile]:
    return sorted(found.entries, key=_SORT_KEYS[sort], reverse=descending)


def _first_entries(found: CacheUsage, sort: str, descending: bool) -> list[CachedFile]:
    pick = heapq.nlargest if descending else heapq.nsmallest
    return pick(MOST_ROWS, found.entries, key=_SORT_KEYS[sort])


EVICT_COLUMNS = ("node", "id", "source", "files", "bytes", "last_used", "leased_by", "outcome")
VERIFY_COLUMNS = ("node", "id", "source", "files", "bytes", "outcome", "corrupt_files", "detail")


def evict_json(report: CacheReport, *, dry_run: bool) -> dict[str, Any]:
    """The form of ``cache evict --format json``."""
    return {
        "dry_run": dry_run,
        "freed": report.freed,
        "listings": cache_rows(report, EVICT_COLUMNS),
        "unreachable": unreachable_cache_rows(report),
    }


def verify_json(report: CacheReport) -> dict[str, Any]:
    """The form of ``cache verify --format json``."""
    return {
        "bytes": report.hashed,
        "freed": report.freed,
        "listings": cache_rows(report, VERIFY_COLUMNS),
        "unreachable": unreachable_cache_rows(report),
    }


def unreachable_cache_rows(report: CacheReport) -> list[dict[str, str]]:
    """The nodes that could not be asked."""
    return [{"node": node, "reason": why} for node, why in report.unreachable]


def unreachable_cache_lines(report: CacheReport) -> list[str]:
    """A warning for each of them."""
    return [
        warning_text(f"{node} is unreachable: {escape(why)}", code="node-unreachable")
        for node, why in report.unreachable
    ]


def cache_rows(report: CacheReport, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The listings with just these members."""
    return [{name: _listing_json(row)[name] for name in columns} for row in report.listings]


def evict_lines(report: CacheReport, *, dry_run: bool, width: int | None = None) -> list[str]:
    """A line for each listing, then what was freed."""
    if not report.listings and not report.freed:
        return ["Nothing to evict."]
    said = {"evicted": "would be evicted"} if dry_run else {}
    cells = [
        [
            *_node_cells(row),
            format_minute(row.last_used),
            said.get(row.outcome, row.outcome),
            ", ".join(map(escape, row.leased_by)),
        ]
        for row in report.listings
    ]
    headers = ["NODE", "LISTING", "SOURCE", "SIZE", "LAST USED (UTC)", "OUTCOME", "USED BY"]
    lines = table(headers, cells, width=width, right=frozenset({"SIZE"}), shrinks=_SHRINKS)
    return lines if dry_run else [*lines, "", f"{format_bytes(report.freed)} freed."]


def verify_lines(report: CacheReport, width: int | None = None) -> list[str]:
    """A line for each listing, what was wrong with those that were, and the counts."""
    if not report.listings:
        return ["The cache is empty."]
    cells = [[*_node_cells(row), row.outcome, escape(row.detail)] for row in report.listings]
    headers = ["NODE", "LISTING", "SOURCE", "SIZE", "OUTCOME", "DETAIL"]
    lines = table(headers, cells, width=width, right=frozenset({"SIZE"}), shrinks=_SHRINKS)
    for row in report.listings:
        lines += [f"  {row.node}: {escape(name)} was corrupt" for name in row.corrupt_files]
    count = pluralize(len(report.listings), "listing")
    return [*lines, "", f"{count} verified, {format_bytes(report.hashed)}."]


_SHRINKS = frozenset({"SOURCE", "USED BY", "DETAIL"})


def _node_cells(row: CachedListingReport) -> list[str]:
    return [row.node, row.id[:12], escape(row.source), format_bytes(row.bytes)]


def _listing_json(row: CachedListingReport) -> dict[str, Any]:
    found = {**asdict(row), "last_used": format_timestamp(row.last_used)}
    return {**found, "leased_by": list(row.leased_by), "corrupt_files": list(row.corrupt_files)}
