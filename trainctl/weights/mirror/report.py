"""What a mirror holds, for people: one row for each source, revision and listing that somebody refers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from trainctl.model.files import Listing
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.needs import Need, needs


@dataclass(frozen=True)
class MirroredSource:
    """One row of ``mirror list``.

    ``listing`` is None while mirroring has not ended. ``bytes_shared`` are those that another listing holds
    too. ``last_used`` is in Unix seconds; ``projects`` are the names of those that refer to it, and ``people`` who last
    mirrored it for them.
    """

    source: str
    revision: str
    listing: str | None
    files: int
    bytes: int
    bytes_shared: int
    last_used: float
    projects: tuple[str, ...]
    people: tuple[str, ...]


def sources(layout: Layout) -> list[MirroredSource]:
    """The rows, in the order of sources and revisions."""
    return rows_of(needs(layout), layout.load_listing)


def rows_of(
    found: Iterable[Need], load_listing: Callable[[str], Listing | None]
) -> list[MirroredSource]:
    """The rows that references make."""
    rows: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for need in found:
        record = {**need.record, "last_used": need.last_used}
        key = (record["source"], record["revision"], record["listing"] or "")
        rows.setdefault(key, []).append(record)
    blobs = _blobs(load_listing, {listing for *_, listing in rows if listing})
    holders = Counter(sha256 for each in blobs.values() for sha256 in each)
    return [
        MirroredSource(
            source=source,
            revision=revision,
            listing=listing or None,
            files=records[0]["files"],
            bytes=records[0]["bytes"],
            bytes_shared=sum(
                size for sha256, size in blobs.get(listing, {}).items() if holders[sha256] > 1
            ),
            last_used=max(record["last_used"] for record in records),
            projects=tuple(sorted({record["project"] for record in records})),
            people=tuple(sorted({record["owner"] for record in records})),
        )
        for (source, revision, listing), records in sorted(rows.items())
    ]


def _blobs(
    load_listing: Callable[[str], Listing | None], listings: set[str]
) -> dict[str, dict[str, int]]:
    loaded = ((listing_id, load_listing(listing_id)) for listing_id in listings)
    return {
        listing_id: {file.sha256: file.size for file in listing.files}
        for listing_id, listing in loaded
        if listing is not None
    }
