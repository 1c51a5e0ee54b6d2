"""Mount locations of one job: none twice, none inside another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainctl.manifest.mounts import overlap
from trainctl.model.diagnostics import Diagnostic, Position, error


@dataclass(frozen=True, slots=True)
class Mounted:
    """Something that appears at a location of a job; ``what`` names it, ``where`` is where the manifest says so."""

    location: str
    what: str
    where: Position


def overlapping(mounts: Sequence[Mounted], address: str) -> list[Diagnostic]:
    """A problem for each location that is another's or lies in another's."""
    problems = []
    ordered = sorted(mounts, key=lambda mounted: mounted.location.split("/"))
    outer: Mounted | None = None
    for mounted in ordered:
        if outer is not None and overlap(outer.location, mounted.location):
            problems.append(_problem(outer, mounted, address))
        else:
            outer = mounted
    return problems


def _problem(outer: Mounted, inner: Mounted, address: str) -> Diagnostic:
    how = (
        f"{outer.what} and {inner.what} both appear at {outer.location}"
        if outer.location == inner.location
        else f"{inner.what} at {inner.location} lies inside {outer.what} at {outer.location}"
    )
    return error(
        how,
        "Give one of them another mount_location.",
        address=address,
        where=inner.where,
        code="overlapping-mounts",
    )
