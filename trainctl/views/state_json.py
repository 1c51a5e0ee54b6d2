"""The state and its history as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainctl.ledger.codec import state_to_json
from trainctl.ledger.history import Row
from trainctl.ledger.records import recorded_to_json
from trainctl.ledger.state import Recorded, State
from trainctl.views.moments import moment


def state_json(state: State) -> dict[str, Any]:
    """The whole state: what ``state pull`` and ``show`` print."""
    return state_to_json(state)


def resource_json(recorded: Recorded) -> dict[str, Any]:
    """One resource, as it stands among the state's."""
    return {
        "address": str(recorded.address),
        "version": recorded.version,
        **recorded_to_json(recorded),
    }


def history_json(rows: Iterable[Row]) -> dict[str, Any]:
    """The object that CONTRACT's ``history --format json`` describes; times are RFC 3339 in UTC."""
    return {"entries": [{**row.to_json(), "time": moment(row.time)} for row in rows]}
