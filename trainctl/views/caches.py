"""Format training caches and weights caches."""

from __future__ import annotations

import heapq
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.protocol.weights import CachedListing
from trainctl.base.units import format_bytes
from trainctl.model.reports import (
    CacheClearResult,
    CachedFile,
    CacheReport,
    CacheUsage,
)
from trainctl.views.terminal.text import (
    escape,
    format_minute,
    format_timestamp,
    pluralize,
    second,
    table,
    warning_text,
)

MOST_ROWS = 1000
"""Maximum number of rows of a table."""

_HEADERS = ("File Path", "Size (bytes)", "Size (human readable)", "Modified", "Type", "Permissions")
_UNITS = ("KB", "MB", "GB", "TB")
_SORT_KEYS: dict[str, Callable[[CachedFile], Any]] = {
    "filepath": lambda entry: entry.path,
    "size": lambda entry: (entry.size, entry.path),
    "modified": lambda entry: (entry.modified, entry.path),
    "type": lambda entry: (file_type(entry.mode), entry.path),
    "permissions": lambda entry: (stat.filemode(entry.mode), entry.path),
}


def decimal_size(count: int) -> str:
    """Format bytes like the hosted service: decimal, ``1.52 GB`` or ``512 B``."""
    if count < 1000:
        return f"{count} B"
    power = next((at for at in range(1, len(_UNITS)) if count < 999.995 * 1000**at), len(_UNITS))
    return f"{count / 1000**power:.2f} {_UNITS[power - 1]}"


def file_type(mode: int) -> str:
    """Return ``file``, ``directory``, ``symlink`` or ``other``."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return kinds.get(stat.S_IFMT(mode), "other")


def cache_json(
    usage: CacheUsage | None,
    project_id: str,
    sort: str,
    *,
    descending: bool,
) -> dict[str, Any]:
    """Return the JSON of ``cache summarize``; zero totals without a cache."""
    size = usage.bytes if usage else 0
    return {
        "timestamp": format_timestamp(usage.at) if usage else None,
        "project_id": project_id,
        "total_files": usage.files if usage else 0,
        "total_size_bytes": size,
        "total_size_human_readable": decimal_size(size),
        "files": [
            {
                "path": entry.path,
                "size_bytes": entry.size,
                "size_human_readable": decimal_size(entry.size),
                "modified": format_timestamp(entry.modified),
                "type": file_type(entry.mode),
                "permissions": stat.filemode(entry.mode),
            }
            for entry in sorted(
                usage.entries if usage else (), key=_SORT_KEYS[sort], reverse=descending
            )
        ],
        "cache": usage.address if usage else None,
        "node": usage.node if usage else None,
        "directory": usage.directory if usage else None,
        "limit_bytes": usage.limit if usage else None,
        "unreachable": [],
    }


def cache_csv(form: Mapping[str, Any]) -> tuple[Sequence[str], Iterator[dict[str, Any]]]:
    """Return the columns and rows of ``cache summarize -o csv``, from its JSON."""
    files = ({**file, "path": escape(file["path"])} for file in form["files"])
    return _HEADERS, (dict(zip(_HEADERS, file.values(), strict=True)) for file in files)


def cache_lines(
    usage: CacheUsage, project_id: str, sort: str, *, descending: bool, width: int | None
) -> list[str]:
    """Return totals and a table of the first entries."""
    head = [
        f"{usage.address}: {escape(usage.directory)}",
        f"Snapshot of {second(usage.at)} UTC, project {project_id}",
        f"{pluralize(usage.files, 'file')}, {decimal_size(usage.bytes)} in total",
        "",
    ]
    if not usage.entries:
        return head[:-1]
    pick = heapq.nlargest if descending else heapq.nsmallest
    shown = pick(MOST_ROWS, usage.entries, key=_SORT_KEYS[sort])
    rows = [[escape(entry.path), *_cells(entry)] for entry in shown]
    headers = ["File Path", "Size", "Modified", "Type", "Permissions"]
    lines = table(headers, rows, right={"Size"}, width=width, shrinks={"File Path"})
    remaining = len(usage.entries) - len(shown)
    more = [f"… and {remaining} more: use -o csv or -o json to list all."] if remaining else []
    return [*head, *lines, *more]


def cache_full_warning(usage: CacheUsage) -> str | None:
    """Return a warning if the cache exceeds its size limit."""
    if usage.limit is None or usage.bytes <= usage.limit:
        return None
    return f"{usage.address} contains {decimal_size(usage.bytes)}, more than its size limit of {decimal_size(usage.limit)}"


def cleared_lines(result: CacheClearResult) -> list[str]:
    """Return what was removed, or would be."""
    if not (result.files or result.left):
        return [f"Nothing to remove in {escape(result.directory)}."]
    verb = "Would remove" if result.dry_run else "Removed"
    amount = f"{pluralize(result.files, 'file')}, {format_bytes(result.bytes)}"
    lines = [f"{verb} {amount} from {escape(result.directory)}."]
    if result.left:
        lines.append(f"{pluralize(result.left, 'file')} not removed: owned by another user.")
    return lines


def _cells(entry: CachedFile) -> list[str]:
    return [
        decimal_size(entry.size),
        format_timestamp(entry.modified) or "",
        file_type(entry.mode),
        stat.filemode(entry.mode),
    ]


EVICT_COLUMNS = ("node", "id", "source", "files", "bytes", "last_used", "leased_by", "outcome")
VERIFY_COLUMNS = ("node", "id", "source", "files", "bytes", "outcome", "corrupt_files", "detail")


def listings_json(report: CacheReport, columns: Sequence[str], **first: int) -> dict[str, Any]:
    """Return the JSON of ``cache evict`` or ``cache verify``; ``first`` are its own values."""
    return {
        **first,
        "freed": report.freed,
        "listings": cache_rows(report, columns),
        "unreachable": [{"node": node, "reason": reason} for node, reason in report.unreachable],
    }


def unreachable_cache_lines(report: CacheReport) -> list[str]:
    """Return a warning for each unreachable node."""
    return [
        warning_text(f"{node} is unreachable: {escape(reason)}", code="node-unreachable")
        for node, reason in report.unreachable
    ]


def cache_rows(report: CacheReport, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the listings with only these columns."""
    rows = [
        {"node": node, **row, "last_used": format_timestamp(row["last_used"])}
        for node, row in report.listings
    ]
    return [{name: row[name] for name in columns} for row in rows]


def evict_lines(report: CacheReport, *, dry_run: bool, width: int | None = None) -> list[str]:
    """Return a table of evicted listings, and the bytes freed."""
    if not report.listings and not report.freed:
        return ["Nothing to evict."]
    texts = {"evicted": "would be evicted"} if dry_run else {}
    columns: dict[str, Callable[[CachedListing], str]] = {
        "LAST USED (UTC)": lambda row: format_minute(row["last_used"]),
        "OUTCOME": lambda row: texts.get(row["outcome"], row["outcome"]),
        "USED BY": lambda row: ", ".join(map(escape, row["leased_by"])),
    }
    lines = _listing_table(report, width, columns)
    return lines if dry_run else [*lines, "", f"{format_bytes(report.freed)} freed."]


def verify_lines(report: CacheReport, width: int | None = None) -> list[str]:
    """Return a table of verified listings, corrupt files, and counts."""
    if not report.listings:
        return ["The cache is empty."]
    columns: dict[str, Callable[[CachedListing], str]] = {
        "OUTCOME": lambda row: row["outcome"],
        "DETAIL": lambda row: escape(row["detail"]),
    }
    lines = _listing_table(report, width, columns)
    for node, row in report.listings:
        lines += [f"  {node}: {escape(name)} was corrupt" for name in row["corrupt_files"]]
    count = pluralize(len(report.listings), "listing")
    return [*lines, "", f"{count} verified, {format_bytes(report.hashed)}."]


def _listing_table(
    report: CacheReport, width: int | None, columns: Mapping[str, Callable[[CachedListing], str]]
) -> list[str]:
    cells = []
    for node, row in report.listings:
        first = [node, row["id"][:12], escape(row["source"]), format_bytes(row["bytes"])]
        cells.append(first + [cell(row) for cell in columns.values()])
    headers = ["NODE", "LISTING", "SOURCE", "SIZE", *columns]
    shrinks = {"SOURCE", "USED BY", "DETAIL"}
    return table(headers, cells, width=width, right={"SIZE"}, shrinks=shrinks)
