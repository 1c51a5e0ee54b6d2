"""Machines that the state doesn't have."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.views.test_json_forms import problems
from trainctl.plugin_api.machines import Machine
from trainctl.resources.orphans import OrphanedMachine, cost_since_launch
from trainctl.views.machines import COLUMNS, ended_lines, machine_row, machines_json, machines_lines

OURS = Machine("i-1", "lab", "lab-0", "mine", "mine/k/lab-0", "running", "small", "a", 3600.0, 0.5)
LOST = Machine("i-2", "burst", "burst-0", "theirs", "theirs/k/burst-0", "stopped")


def test_they_are_listed_with_their_cost() -> None:
    """A machine of another state is marked, as that state may use it."""
    cost = cost_since_launch(OURS, 3600.0 + 7200.0)
    orphans = [
        OrphanedMachine("rented", OURS, of_this_state=True, cost=cost),
        OrphanedMachine("rented", LOST, of_this_state=False, cost=cost_since_launch(LOST, 0.0)),
    ]

    assert machines_lines(orphans, 10800.0) == [
        "NODE           MACHINE  TYPE   STATE    UP  COST  LINEAGE",
        "lab/lab-0      i-1      small  running  2h  1.00  this state",
        "burst/burst-0  i-2             stopped            theirs",
        "",
        "1.00 USD since launch, 0.50 USD per hour.",
        "Other states may use machines with another lineage than this state's.",
    ]
    failed = replace(orphans[1], error="access denied")
    assert ended_lines([orphans[0], failed]) == [
        "Ended lab/lab-0 (i-1).",
        "burst/burst-0 (i-2): access denied",
    ]
    assert machines_lines([], 0.0) == ["No orphaned machines."]
    assert problems("machines", machines_json(orphans)) == []
    assert set(machine_row(orphans[0])) == set(COLUMNS)
