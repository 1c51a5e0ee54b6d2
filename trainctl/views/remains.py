"""What destroy leaves, for people."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.base.units import format_bytes
from trainctl.model.status import Remain


def remains_lines(remains: Sequence[Remain]) -> list[str]:
    """One line for each directory that stays, and how to be rid of checkpoints."""
    if not remains:
        return []
    lines = ["", "Kept, as data that may be wanted again:"]
    lines += [f"  {one.what:<12} {one.place}  {format_bytes(one.bytes)}" for one in remains]
    if any(one.what == "checkpoints" for one in remains):
        lines.append("With --delete-checkpoints, destroy deletes checkpoints as well.")
    if any(one.what == "mirror" for one in remains):
        lines.append("`trainctl mirror gc` deletes what no state refers to any more of the mirror.")
    return lines
