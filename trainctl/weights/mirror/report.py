"""What a mirror holds, for people: one row for each source, revision and listing that somebody refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Callable, NamedTuple

from trainctl.base.listing import Listing
from trainctl.base.packed import packed_sorted
from trainctl.errors import StorageError
from trainctl.weights.mirror.layout import DAMAGED, Layout, named_in, versions_in
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
    endpoint: str | None = None
    """The server that it came from, where that is not its platform's own."""
    listing_is: str = ""
    """What is wrong with its listing, ``missing`` or ``damaged``: nobody knows then what of it others have."""


@dataclass(frozen=True)
class Inventory:
    """What ``mirror list`` tells: beside the rows, in bytes, what lies there of sources that aren't whole, and what a collection would delete.

    Together they are all that lies there, but for what is in packs that stay for other files' sake. ``damaged``: what is wrong with each
    reference that can't be read. Where nobody knows what is needed, nothing would be deleted.
    """

    rows: tuple[MirroredSource, ...]
    unfinished: int = 0
    unreferenced: int = 0
    damaged: tuple[str, ...] = ()


def inventory_of(
    rows: Sequence[MirroredSource], damaged: Sequence[str], lying: int, free: int | None
) -> Inventory:
    """``lying`` are all bytes that are there, ``free`` those that a collection would delete; None where it refuses, as nobody knows."""
    is_whole = free is not None and all(row.listing for row in rows)
    rest = lying - (free or 0) - sum(row.bytes_stored for row in rows)
    unfinished = 0 if is_whole else max(0, rest)
    return Inventory(tuple(rows), unfinished, free or 0, tuple(damaged))


def sources(layout: Layout) -> list[MirroredSource]:
    """The rows, in the order of sources and revisions, but for damaged references. StorageError where one may not be read."""
    found = references(layout)
    for problem in found.hidden:
        raise problem
    return rows_of(found.needs, layout.load_listing)


class _Key(NamedTuple):
    """What makes a row. Another server may have other content by the same URI."""

    source: str
    endpoint: str
    revision: str
    listing: str


class _Held(NamedTuple):
    """A content of a row, by the row's number."""

    sha256: str
    row: int
    size: int


@dataclass
class _Sharing:
    """What of a row others have, in bytes; ``is_known`` where its listing is there, ``listing_is`` what is wrong with it where it isn't."""

    is_known: bool = False
    listing_is: str = ""
    shared: int = 0
    stored: int = 0


def rows_of(
    found: Iterable[Need], load_listing: Callable[[str], Listing | None]
) -> list[MirroredSource]:
    """The rows that references make. However many files they have, no list of them is in memory."""
    rows: dict[_Key, list[Mapping[str, Any]]] = {}
    for need in found:
        for record in versions_in({**need.record, "last_used": need.last_used}):
            source, endpoint, revision = named_in(record)
            key = _Key(source, endpoint or "", revision, record["listing"] or "")
            rows.setdefault(key, []).append(record)
    keys = sorted(rows)
    sharing = [_Sharing() for _ in keys]
    held = packed_sorted(_held(keys, sharing, load_listing), tuple, _Held)
    for _, same in groupby(held, attrgetter("sha256")):
        sizes = {one.row: one.size for one in same}
        for number, (row, size) in enumerate(sizes.items()):
            sharing[row].stored += 0 if number else size
            sharing[row].shared += size if len(sizes) > 1 else 0
    return [_row(key, rows[key], its) for key, its in zip(keys, sharing)]


def _held(
    keys: Sequence[_Key],
    sharing: Sequence[_Sharing],
    load_listing: Callable[[str], Listing | None],
) -> Iterator[_Held]:
    for number, key in enumerate(keys):
        if not key.listing:
            continue
        try:
            listing = load_listing(key.listing)
        except StorageError as error:
            if error.code != DAMAGED:
                raise
            sharing[number].listing_is = "damaged"
            continue
        if listing is None:
            sharing[number].listing_is = "missing"
            continue
        sharing[number].is_known = True
        yield from (_Held(file.sha256, number, file.size) for file in listing.files)


def _row(key: _Key, records: Sequence[Mapping[str, Any]], sharing: _Sharing) -> MirroredSource:
    size = records[0]["bytes"]
    return MirroredSource(
        source=key.source,
        revision=key.revision,
        listing=key.listing or None,
        files=records[0]["files"],
        bytes=size,
        bytes_shared=sharing.shared,
        bytes_stored=sharing.stored,
        bytes_saved=size - sharing.stored if sharing.is_known else 0,
        last_used=max(record["last_used"] for record in records),
        projects=tuple(sorted({record["project"] for record in records})),
        people=tuple(sorted({record["owner"] for record in records})),
        endpoint=key.endpoint or None,
        listing_is=sharing.listing_is,
    )
