"""Reports about a store as JSON, for one that is on another host."""

from __future__ import annotations

from typing import Any, Iterable, Sequence, Tuple

from trainctl.base.protocol.mirrors import Collected, Inventoried
from trainctl.store.gc import GcReport, RemovedListing
from trainctl.store.inventory import Inventory, Row
from trainctl.store.references import StoredReference
from trainctl.store.verify import Finding, Outcome


def gc_to_json(report: GcReport) -> Collected:
    """The form that travels."""
    return {
        "dry_run": report.dry_run,
        "bytes": report.bytes,
        "blobs": report.blobs,
        "listings": list(report.listings),
        "dropped": list(report.dropped),
        "kept": list(report.kept),
        "busy": list(report.busy),
    }


def gc_from_json(value: Collected) -> GcReport:
    """Read what ``gc_to_json`` returned."""
    return GcReport(
        value["dry_run"],
        value["bytes"],
        value["blobs"],
        tuple(RemovedListing(*row) for row in value["listings"]),
        _references(value["dropped"]),
        _references(value["kept"]),
        _references(value["busy"]),
    )


def inventory_to_json(inventory: Inventory) -> Inventoried:
    """The form that travels."""
    return {
        "rows": list(inventory.rows),
        "unfinished": inventory.unfinished,
        "unreferenced": inventory.unreferenced,
        "damaged": list(inventory.damaged),
    }


def inventory_from_json(value: Inventoried) -> Inventory:
    """Read what ``inventory_to_json`` returned."""
    rows = (Row(*row) for row in value["rows"])
    return Inventory(
        tuple(row._replace(projects=tuple(row.projects), people=tuple(row.people)) for row in rows),
        value["unfinished"],
        value["unreferenced"],
        tuple(value["damaged"]),
    )


def finding_to_row(finding: Finding) -> Sequence[Any]:
    """The form that travels."""
    return (
        finding.key,
        finding.what,
        finding.bytes,
        finding.sources,
        str(finding.outcome),
        finding.detail,
    )


def finding_from_row(row: Sequence[Any]) -> Finding:
    """Read what ``finding_to_row`` returned."""
    key, what, size, sources, outcome, detail = row
    return Finding(key, what, size, tuple(sources), Outcome(outcome), detail)


def _references(rows: Iterable[Sequence[Any]]) -> Tuple[StoredReference, ...]:
    return tuple(StoredReference(*row) for row in rows)
