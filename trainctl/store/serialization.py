"""Reports about a store as JSON, for one that is on another host."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Sequence, Tuple

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.protocol.mirrors import (
    MirrorGcResponse,
    MirrorInventoryResponse,
    MirrorSurveyResponse,
    SourceDocument,
)
from trainctl.store.maintenance.gc import GcReport, RemovedListing
from trainctl.store.maintenance.inventory import InventoryRow as InventoryRow
from trainctl.store.maintenance.inventory import MirrorInventory
from trainctl.store.maintenance.survey import FileSurveyRow, SourceSurvey, StoreSurvey
from trainctl.store.maintenance.verify import Finding, FindingOutcome
from trainctl.store.references import StoredReference


def source_to_json(resolved: ResolvedSource) -> SourceDocument:
    """A source without its files, which travel as rows."""
    return {
        "source": resolved.source,
        "endpoint": resolved.endpoint,
        "revision": resolved.revision,
        "known_as": resolved.known_as,
    }


def file_rows(resolved: ResolvedSource) -> Iterator[Sequence[Any]]:
    """The files of a source, in order."""
    return ((file.path, file.size, file.validator, file.checksum) for file in resolved.files)


def source_from_json(value: SourceDocument, rows: Iterable[Sequence[Any]]) -> ResolvedSource:
    """Read what ``source_to_json`` and ``file_rows`` returned."""
    return ResolvedSource(
        value["source"],
        value["revision"],
        tuple(SourceFile(*row) for row in rows),
        known_as=value["known_as"],
        endpoint=value["endpoint"],
    )


def survey_from_json(
    value: MirrorSurveyResponse, rows: Sequence[Sequence[FileSurveyRow]]
) -> StoreSurvey:
    """Read the answer to a survey. ``rows`` has those of each source's files."""
    return StoreSurvey(
        tuple(
            SourceSurvey(tuple(its), listing, arrived)
            for its, listing, arrived in zip(rows, value["complete"], value["arrived"])
        ),
        frozenset(value["listings"]),
        value["free"],
        tuple(value["damaged"]),
        value["unusable"],
    )


def gc_from_json(value: MirrorGcResponse) -> GcReport:
    """Read a report's members."""
    return GcReport(
        value["dry_run"],
        value["bytes"],
        value["blobs"],
        tuple(RemovedListing(*row) for row in value["listings"]),
        _references(value["dropped"]),
        _references(value["kept"]),
        _references(value["busy"]),
    )


def inventory_from_json(value: MirrorInventoryResponse) -> MirrorInventory:
    """Read an inventory's members."""
    rows = (InventoryRow(*row) for row in value["rows"])
    return MirrorInventory(
        tuple(row._replace(projects=tuple(row.projects), users=tuple(row.users)) for row in rows),
        value["unfinished"],
        value["unreferenced"],
        tuple(value["damaged"]),
    )


def finding_from_row(row: Sequence[Any]) -> Finding:
    """Read a finding's members, in order."""
    key, problem, size, sources, outcome, detail = row
    return Finding(key, problem, size, tuple(sources), FindingOutcome(outcome), detail)


def _references(rows: Iterable[Sequence[Any]]) -> Tuple[StoredReference, ...]:
    return tuple(StoredReference(*row) for row in rows)
