"""Reports about a store as JSON, for stores on other hosts."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Sequence, Tuple

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.protocol.mirrors import (
    MirrorGcResponse,
    MirrorInventoryResponse,
    MirrorSurveyResponse,
    SourceDocument,
)
from trainctl.store.gc import GcReport, RemovedListing
from trainctl.store.references import StoredReference
from trainctl.store.survey import FileSurveyRow, MirrorInventory, SourceSurvey, StoreSurvey
from trainctl.store.survey import InventoryRow as InventoryRow
from trainctl.store.verify import Finding, FindingOutcome


def source_to_json(resolved: ResolvedSource) -> SourceDocument:
    """Encode a source without its files, which are sent as rows."""
    return {
        "source": resolved.source,
        "endpoint": resolved.endpoint,
        "revision": resolved.revision,
        "known_as": resolved.known_as,
    }


def file_rows(resolved: ResolvedSource) -> Iterator[Sequence[Any]]:
    """Yield the files of a source as rows."""
    return ((file.path, file.size, file.validator, file.checksum) for file in resolved.files)


def source_from_json(value: SourceDocument, rows: Iterable[Sequence[Any]]) -> ResolvedSource:
    """Decode a source and its ``file_rows``."""
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
    """Decode a survey; ``rows`` has the rows of each source's files."""
    return StoreSurvey(
        tuple(
            SourceSurvey(tuple(file_rows), listing, arrived)
            for file_rows, listing, arrived in zip(rows, value["complete"], value["arrived"])
        ),
        frozenset(value["listings"]),
        value["free"],
        tuple(value["damaged"]),
        value["unusable"],
    )


def gc_from_json(response: MirrorGcResponse) -> GcReport:
    """Decode a report of garbage collection."""
    value = response["report"]
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
    """Decode an inventory."""
    rows = (InventoryRow(*row) for row in value["rows"])
    return MirrorInventory(
        tuple(row._replace(projects=tuple(row.projects), users=tuple(row.users)) for row in rows),
        value["unfinished"],
        value["unreferenced"],
        tuple(value["damaged"]),
    )


def finding_from_row(row: Sequence[Any]) -> Finding:
    """Decode a finding of a verification."""
    key, problem, size, sources, outcome, detail = row
    return Finding(key, problem, size, tuple(sources), FindingOutcome(outcome), detail)


def _references(rows: Iterable[Sequence[Any]]) -> Tuple[StoredReference, ...]:
    return tuple(StoredReference(*row) for row in rows)
