"""What a mirror holds, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainctl.model.units import format_bytes
from trainctl.views.moments import minute, moment
from trainctl.views.plan_tables import short_revision
from trainctl.views.text import table
from trainctl.weights.mirror.report import MirroredSource

MIRROR_COLUMNS = (
    "source", "revision", "listing", "files", "bytes", "bytes_shared", "last_used", "projects", "people",
)  # fmt: skip


def mirror_json(rows: Sequence[MirroredSource]) -> dict[str, Any]:
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
                "last_used": moment(row.last_used),
                "projects": list(row.projects),
                "people": list(row.people),
            }
            for row in rows
        ]
    }


def mirror_lines(rows: Sequence[MirroredSource], width: int | None = None) -> list[str]:
    """A line for each source; in so many columns if they must fit."""
    if not rows:
        return ["The mirror is empty."]
    cells = [
        [
            row.source,
            short_revision(row.revision),
            str(row.files),
            format_bytes(row.bytes),
            format_bytes(row.bytes_shared),
            minute(row.last_used),
            ", ".join(row.projects),
            ", ".join(row.people),
        ]
        for row in rows
    ]
    headers = [
        "SOURCE",
        "REVISION",
        "FILES",
        "SIZE",
        "SHARED",
        "LAST USED (UTC)",
        "PROJECTS",
        "PEOPLE",
    ]
    return table(headers, cells, width=width, shrinks=frozenset({"SOURCE"}))
