"""Times, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(seconds: float | None) -> str | None:
    """A time as RFC 3339 in UTC; None for one that no calendar has, which a wrong clock may have given a file."""
    if seconds is None:
        return None
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def minute(seconds: float | None) -> str:
    """A time in tables, in UTC: ``2026-01-31 12:00``; empty where there is none."""
    return (moment(seconds) or "")[:16].replace("T", " ")
