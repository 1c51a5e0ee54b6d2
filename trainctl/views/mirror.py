"""What a mirror holds, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainctl.model.units import format_bytes
from trainctl.views.statuses import moment
from trainctl.views.text import table
from trainctl.weights.mirror.report import MirroredSource


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
            }
            for row in rows
        ]
    }


def mirror_lines(rows: Sequence[MirroredSource]) -> list[str]:
    """A line for each source."""
    if not rows:
        return ["The mirror is empty."]
    cells = [
        [
            row.source,
            row.revision[:12],
            str(row.files),
            format_bytes(row.bytes),
            format_bytes(row.bytes_shared),
            moment(row.last_used) or "",
            ", ".join(row.projects),
        ]
        for row in rows
    ]
    return table(["SOURCE", "REVISION", "FILES", "SIZE", "SHARED", "LAST USED", "PROJECTS"], cells)
