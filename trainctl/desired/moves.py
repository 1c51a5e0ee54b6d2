"""Conversion of ``moved``, ``removed`` and ``import``."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trainctl.desired.names import DeclaredNames
from trainctl.desired.values import DesiredMoves
from trainctl.ledger.renaming import RENAMEABLE
from trainctl.manifest.types.document import Manifest
from trainctl.manifest.types.moves import ImportedRun, MovedResource, RemovedResource
from trainctl.model.address import Address, Kind

Problem = tuple[str, str] | None
"""Summary and detail."""


def moves(manifest: Manifest, resources: Collection[Address], names: DeclaredNames) -> DesiredMoves:
    """Return renamed, removed and imported resources; chains of renames are resolved."""
    declared = {*resources, *(address.group for address in resources)}
    sections: Iterable[tuple[str, str, Iterable[MovedResource | RemovedResource | ImportedRun]]] = (
        ("moved", "from", manifest.moved),
        ("removed", "from", manifest.removed),
        ("import", "to", manifest.imports),
    )
    valid = True
    for section, key, items in sections:
        for index, item in enumerate(items):
            if problem := _problem(item, section, declared):
                names.report_problem(*problem, (section, index, key), code="invalid-move")
                valid = False
    if not valid:
        return DesiredMoves()
    moved = {Address.parse(item.before): Address.parse(item.to) for item in manifest.moved}
    for old in moved:
        for _ in moved:  # at most, so that a circle ends
            moved[old] = moved.get(moved[old], moved[old])
    return DesiredMoves(
        moved,
        {Address.parse(item.before): item.destroy for item in manifest.removed},
        {Address.parse(item.to): item.id for item in manifest.imports},
    )


def _problem(
    item: MovedResource | RemovedResource | ImportedRun, section: str, declared: Collection[Address]
) -> Problem:
    if isinstance(item, ImportedRun):
        if Address.parse(item.to).kind is not Kind.JOB or Address.parse(item.to) not in declared:
            advice = "Declare the job. Clusters, weights and caches need no import: apply finds what exists."
            return f"import: {item.to} is not a declared job", advice
        if item.id.count("/") != 2:
            advice = "Name the node and the ID of the run, for example lab/gpu-01/nuui5lk."
            return f"import: {item.id!r} is not CLUSTER/NODE/RUN", advice
        return None
    old = Address.parse(item.before)
    if isinstance(item, MovedResource):
        new = Address.parse(item.to)
        if old.kind is not new.kind or old.kind not in RENAMEABLE or old == new:
            advice = f"Both must be of one of these kinds: {', '.join(RENAMEABLE)}."
            return f"{old} can't be moved to {new}", advice
    if old in declared:
        return f"{old} is declared, and listed under {section!r}", "Remove one of them."
    return None
