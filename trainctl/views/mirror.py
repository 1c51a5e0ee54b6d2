"""What a mirror holds, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainctl.base.units import format_bytes
from trainctl.store.inventory import Inventory, Row
from trainctl.views.plan.tables import short_revision
from trainctl.views.terminal.tables import chosen, table_of
from trainctl.views.terminal.text import minute, moment

MIRROR_COLUMNS = (
    "source", "revision", "listing", "files", "bytes", "bytes_shared", "bytes_stored", "last_used", "projects", "people", "endpoint", "listing_is",
)  # fmt: skip


def mirror_json(found: Inventory) -> dict[str, Any]:
    """The object that CONTRACT's ``mirror list --format json`` describes."""
    return {
        "sources": [
            {
                "source": row.source,
                "revision": row.revision,
                "listing": row.listing,
                "files": row.files,
                "bytes": row.bytes,
                "bytes_shared": row.bytes_shared,
                "bytes_stored": row.bytes_stored,
                "last_used": moment(row.last_used),
                "projects": list(row.projects),
                "people": list(row.people),
                "endpoint": row.endpoint,
                "listing_is": _listing_is(row),
            }
            for row in found.rows
        ],
        "bytes_stored": sum(row.bytes_stored for row in found.rows),
        "bytes_saved": sum(row.bytes_saved for row in found.rows),
        "bytes_unfinished": found.unfinished,
        "bytes_unreferenced": found.unreferenced,
    }


def mirror_lines(found: Inventory, width: int | None = None) -> list[str]:
    """A line for each source, and what all of them take; in so many columns if they must fit, where the last columns may be missing."""
    if not found.rows:
        is_empty = not (found.unfinished or found.unreferenced)
        return ["The mirror is empty." if is_empty else _total(found)]
    return [*_table(found.rows, width), "", _total(found)]


def _table(rows: Sequence[Row], width: int | None) -> list[str]:
    said = [
        {**_cells(row), _SERVER: server} for row, server in zip(rows, _servers(rows), strict=True)
    ]
    cells = {header: [each[header] for each in said] for header in said[0]}
    choices = (*_CHOICES, _NARROW_WITH_SERVER)
    if not any(cells[_SERVER]):
        del cells[_SERVER]
        choices = _CHOICES
    headers = chosen(choices, cells, width, _NARROWEST)
    right = frozenset({"FILES", "SIZE", "SHARED"})
    return table_of(headers, cells, width, _NARROWEST, right=right)


_SERVER = "SERVER"
_ALWAYS = ("SOURCE", _SERVER, "REVISION", "FILES", "SIZE", "SHARED")
_WHOLE = "whole"
_DAY = "LAST USED/by day"
_MINUTE = "LAST USED (UTC)"
_CHOICES: tuple[tuple[str, ...], ...] = (
    (*_ALWAYS, _MINUTE, "PROJECTS", "PEOPLE"),
    (*_ALWAYS, _MINUTE, "PROJECTS"),
    (*_ALWAYS, _MINUTE),
    (*_ALWAYS, _DAY),
    _ALWAYS,
)
"""Which columns are shown, the most that fit: JSON and CSV have all of them."""
_NARROW_WITH_SERVER = ("SOURCE", _SERVER, "FILES", "SIZE")
"""Servers are shown whole: two that look the same would be of no use."""
_NARROWEST = {"SOURCE": 32, "PROJECTS": 10, "PEOPLE": 10}
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


def _cells(row: Row) -> dict[str, str]:
    return {
        "SOURCE": row.source,
        "REVISION": short_revision(row.revision),
        "FILES": str(row.files),
        "SIZE": format_bytes(row.bytes),
        "SHARED": _listing_is(row)
        if _listing_is(row) != _WHOLE
        else format_bytes(row.bytes_shared),
        _MINUTE: minute(row.last_used),
        _DAY: minute(row.last_used).partition(" ")[0],
        "PROJECTS": ", ".join(row.projects),
        "PEOPLE": ", ".join(row.people),
    }


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
