"""Format machines that the state doesn't have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainctl.base.units import format_duration
from trainctl.resources.orphans import OrphanedMachine
from trainctl.views.terminal.tables import table
from trainctl.views.terminal.text import escape, format_timestamp

COLUMNS = (
    "provider", "id", "cluster", "node", "lineage", "key", "of_this_state", "state", "type", "zone", "launched_at",
    "price_per_hour", "cost", "ended", "error",
)  # fmt: skip
_HEADERS = ["NODE", "MACHINE", "TYPE", "STATE", "UP", "COST", "LINEAGE"]


def machines_json(machines: Sequence[OrphanedMachine]) -> dict[str, Any]:
    """Return the JSON of ``nodes --orphans`` and ``nodes reap``."""
    return {"machines": [machine_row(machine) for machine in machines]}


def machine_row(orphan: OrphanedMachine) -> dict[str, Any]:
    """Return the JSON of one machine, which is also its CSV row."""
    machine = orphan.machine
    names = ("id", "cluster", "node", "lineage", "key", "state", "type", "zone", "price_per_hour")
    return {
        "provider": orphan.provider,
        **{name: getattr(machine, name) for name in names},
        "of_this_state": orphan.of_this_state,
        "launched_at": format_timestamp(machine.launched_at),
        "cost": None if orphan.cost is None else round(orphan.cost, 2),
        "ended": orphan.ended,
        "error": orphan.error or None,
    }


def machines_lines(
    machines: Sequence[OrphanedMachine], now: float, width: int | None = None
) -> list[str]:
    """Return a table of machines and their total cost."""
    if not machines:
        return ["No orphaned machines."]
    rows = [_cells(orphan, now) for orphan in machines]
    lines = table(_HEADERS, rows, right=frozenset({"UP", "COST"}), width=width)
    hourly = sum(orphan.machine.price_per_hour or 0.0 for orphan in machines)
    total = sum(orphan.cost or 0.0 for orphan in machines)
    lines += ["", f"{total:.2f} USD since launch, {hourly:.2f} USD per hour."]
    others = sorted({one.machine.lineage for one in machines if not one.of_this_state})
    if others:
        lines.append("Other states may use machines with another lineage than this state's.")
    return lines


def ended_lines(machines: Sequence[OrphanedMachine]) -> list[str]:
    """Return what became of each machine."""
    lines = []
    for orphan in machines:
        name = f"{orphan.machine.cluster}/{orphan.machine.node} ({orphan.machine.id})"
        lines.append(escape(f"{name}: {orphan.error}" if orphan.error else f"Ended {name}."))
    return lines


def _cells(orphan: OrphanedMachine, now: float) -> list[str]:
    machine = orphan.machine
    launched = machine.launched_at
    words = (
        f"{machine.cluster}/{machine.node}",
        machine.id,
        machine.type,
        machine.state,
        "" if launched is None else format_duration(max(0.0, now - launched)),
        "" if orphan.cost is None else f"{orphan.cost:.2f}",
        "this state" if orphan.of_this_state else machine.lineage,
    )
    return [escape(word) for word in words]
