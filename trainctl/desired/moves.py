"""Conversion of ``moved``, ``removed`` and ``import``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from trainctl.desired.names import DeclaredNames
from trainctl.desired.values import DesiredMoves
from trainctl.ledger.renaming import RENAMEABLE
from trainctl.manifest.tree import Path as ManifestPath
from trainctl.manifest.types.document import Manifest
from trainctl.model.address import Address, Kind


def moves(manifest: Manifest, resources: Collection[Address], names: DeclaredNames) -> DesiredMoves:
    """Return renamed, removed and imported resources; chains of renames are resolved."""
    declared = {*resources, *(address.group for address in resources)}
    moved = dict(_moved(manifest, declared, names))
    return DesiredMoves(
        {old: _last(old, moved) for old in moved},
        dict(_removed(manifest, declared, names)),
        dict(_imports(manifest, declared, names)),
    )


def _moved(
    manifest: Manifest, declared: Collection[Address], names: DeclaredNames
) -> Iterator[tuple[Address, Address]]:
    for index, section in enumerate(manifest.moved):
        path: ManifestPath = ("moved", index, "from")
        old, new = Address.parse(section.before), Address.parse(section.to)
        if old.kind is not new.kind or old.kind not in RENAMEABLE or old == new:
            names.report_problem(
                f"{old} can't be moved to {new}",
                f"Both must be of one of these kinds: {', '.join(RENAMEABLE)}.",
                path,
                code="invalid-move",
            )
        elif not _is_declared(old, declared, names, path):
            yield old, new


def _last(old: Address, moved: Mapping[Address, Address]) -> Address:
    seen = {old}
    while (new := moved[old]) in moved and new not in seen:
        seen.add(new)
        old = new
    return new


def _removed(
    manifest: Manifest, declared: Collection[Address], names: DeclaredNames
) -> Iterator[tuple[Address, bool]]:
    for index, section in enumerate(manifest.removed):
        address = Address.parse(section.before)
        if not _is_declared(address, declared, names, ("removed", index, "from")):
            yield address, section.destroy


def _imports(
    manifest: Manifest, declared: Collection[Address], names: DeclaredNames
) -> Iterator[tuple[Address, str]]:
    for index, section in enumerate(manifest.imports):
        address = Address.parse(section.to)
        if address.kind is not Kind.JOB or address not in declared:
            names.report_problem(
                f"import: {address} is not a declared job",
                "Declare the job. Clusters, weights and caches need no import: apply finds what exists.",
                ("import", index, "to"),
                code="invalid-move",
            )
        elif section.id.count("/") != 2:
            names.report_problem(
                f"import: {section.id!r} is not CLUSTER/NODE/RUN",
                "Name the node and the ID of the run, for example lab/gpu-01/nuui5lk.",
                ("import", index, "id"),
                code="invalid-move",
            )
        else:
            yield address, section.id


def _is_declared(
    address: Address, declared: Collection[Address], names: DeclaredNames, path: ManifestPath
) -> bool:
    if address not in declared:
        return False
    names.report_problem(
        f"{address} is declared, and listed under {path[0]!r}",
        "Remove one of them.",
        path,
        code="invalid-move",
    )
    return True
