"""What a mirror holds, for people: one row for each source, revision and listing that somebody refers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from trainctl.model.files import Listing
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.needs import Need, references


@dataclass(frozen=True)
class MirroredSource:
    """One row of ``mirror list``.

    ``listing`` is None while mirroring has not ended. ``bytes_shared`` are those that another row has, too; ``bytes_stored``
    those that no row before it has, and ``bytes_saved`` the others, so that their sums are what all rows take and what they would take more
    without sharing. What isn't whole has none of them. ``last_used`` is in Unix seconds; ``projects`` are the names of those that refer to it, and ``people`` who last
    mirrored it for them.
    """

    source: str
    revision: str
    listing: str | None
    files: int
    bytes: int
    bytes_shared: int
    bytes_stored: int
    bytes_saved: int
    last_used: float
    projects: tuple[str, ...]
    people: tuple[str, ...]


def sources(layout: Layout) -> list[MirroredSource]:
    """The rows, in the order of sources and revisions, but for damaged references. StorageError where one may not be read."""
    found = references(layout)
    for problem in found.hidden:
        raise problem
    return rows_of(found.needs, layout.load_listing)


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
    holders = Counter(sha256 for *_, listing in rows for sha256 in blobs.get(listing, ()))
    seen: set[str] = set()
    return [_row(*key, rows[key], blobs.get(key[2]), holders, seen) for key in sorted(rows)]


def _row(
    source: str,
    revision: str,
    listing: str,
    records: Sequence[Mapping[str, Any]],
    content: Mapping[str, int] | None,
    holders: Mapping[str, int],
    seen: set[str],
) -> MirroredSource:
    """One row; ``seen`` are the contents of those before it, and then its own, too."""
    sizes, size = content or {}, records[0]["bytes"]
    stored = sum(bytes_ for sha256, bytes_ in sizes.items() if sha256 not in seen)
    seen.update(sizes)
    return MirroredSource(
        source=source,
        revision=revision,
        listing=listing or None,
        files=records[0]["files"],
        bytes=size,
        bytes_shared=sum(bytes_ for sha256, bytes_ in sizes.items() if holders[sha256] > 1),
        bytes_stored=stored,
        bytes_saved=0 if content is None else size - stored,
        last_used=max(record["last_used"] for record in records),
        projects=tuple(sorted({record["project"] for record in records})),
        people=tuple(sorted({record["owner"] for record in records})),
    )


def _blobs(
    load_listing: Callable[[str], Listing | None], listings: set[str]
) -> dict[str, dict[str, int]]:
    loaded = ((listing_id, load_listing(listing_id)) for listing_id in listings)
    return {
        listing_id: {file.sha256: file.size for file in listing.files}
        for listing_id, listing in loaded
        if listing is not None
    }
