"""Times as users type them."""

from __future__ import annotations

from datetime import UTC, datetime

from trainctl.cli.planning import duration
from trainctl.errors import UsageError
from trainctl.operations.logs import Moment


def moment(flag: str, text: str | None) -> Moment | None:
    """``10m`` (that long ago), or RFC 3339, in UTC where it names no zone; UsageError names the flag."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is not None:
        return Moment((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    try:
        return Moment(duration(flag, text), ago=True)
    except UsageError:
        raise UsageError(
            f"{flag} {text!r} is no time", "Write 10m, 2h30m, 1d or 2026-01-31T12:00:00Z."
        ) from None
