"""What a mirror can tell of a source before anything moves: each file's content where it is known, and whether it is here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Iterable, Iterator, Mapping, Optional, Sequence, Tuple

from trainctl.base import below
from trainctl.base.listing import ListedFile, Listing, ResolvedSource, SourceFile, read_files
from trainctl.base.packed import packed
from trainctl.weights.mirror.announced import Contradicted, held_against
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import by_fingerprint, parts, present
from trainctl.weights.mirror.layout import Layout, fingerprint, listing_in, unless_damaged
from trainctl.weights.mirror.needs import Need, references
from trainctl.weights.mirror.packing import half_packed
from trainctl.weights.mirror.partial import Arrived, arrived, bytes_kept
from trainctl.weights.mirror.records import Records

Row = Tuple[Optional[str], int, bool]


@dataclass(frozen=True)
class Known:
    """Of each file, in the order of paths, ``(sha256, size, here)``, sha256 None where nobody knows it yet; the listing if all are here.

    ``arrived``: by the place of a file that isn't here, what is there of it.
    """

    files: Sequence[Row]
    listing: str | None
    arrived: Mapping[int, Arrived] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """All bytes of the source."""
        return sum(size for _, size, _ in self.files)

    @property
    def here(self) -> int:
        """The bytes that are in the mirror."""
        return sum(size for _, size, here in self.files if here)

    @property
    def had(self) -> int:
        """The bytes that needn't come from upstream again."""
        return self.here + sum(one.good for one in self.arrived.values())

    @property
    def to_store(self) -> int:
        """The bytes that the mirror still needs room for."""
        return self.size - self.here - sum(one.laid for one in self.arrived.values())


def known(
    mirror: DirectoryMirror, sources: Sequence[ResolvedSource]
) -> tuple[tuple[Known, ...], tuple[str, ...]]:
    """What is known of each, and which references are damaged; what others can't read stops nobody here.

    Looks without writing. StorageError where the mirror can't be read.
    """
    with explained(mirror.root):
        found = references(Layout(mirror.root, mirror.chunk_bytes))
        damaged = tuple(error.summary for error in found.damaged.values())
    return tuple(_known(mirror, one, found.needs) for one in sources), damaged


def _known(mirror: DirectoryMirror, resolved: ResolvedSource, found: Iterable[Need]) -> Known:
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        contents = Contents(layout)
        for listed in listed_as(layout, resolved, found):
            with suppress(Contradicted, ValueError):  # who wrote it may have written anything
                files = held_against(resolved, read_files(layout.listing(listed)))
                return Known(_packed(_rows(contents, files)), listed)
        rows, listing = _packed(_by_record(contents, resolved)), None
        if all(here for _, _, here in rows):
            _, listing = mirror.mirrored_bytes(resolved)
        return Known(rows, listing, {} if listing else _arrived(layout, resolved, rows))


def listed_as(layout: Layout, resolved: ResolvedSource, found: Iterable[Need]) -> Iterator[str]:
    """The ids of listings that references say this very source, as it is now, to be, if they are here and right."""
    named = (listing_in(need.record, resolved) for need in found)
    return filter(layout.has_listing, filter(None, dict.fromkeys(named)))


def kept(mirror: DirectoryMirror, wanted: ResolvedSource) -> Listing | None:
    """The same listing, if all its content is here too."""
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        listed = next(listed_as(layout, wanted, references(layout).needs), None)
        if listed is None:
            return None
        listing = unless_damaged(lambda: layout.load_listing(listed))
        if listing is None:
            return None
        rows = _rows(Contents(layout), listing.files)
        return listing if all(here for _, _, here in rows) else None


def _packed(rows: Iterable[Row]) -> Sequence[Row]:
    return packed(rows, tuple, lambda *row: row)


def _rows(contents: Contents, files: Iterable[ListedFile]) -> Iterator[Row]:
    return ((one.sha256, one.size, contents.has(one.sha256, one.size)) for one in files)


def _by_record(contents: Contents, resolved: ResolvedSource) -> Iterator[Row]:
    records = Records.of(contents.layout, resolved.source)
    for part in parts(resolved):
        found = present(contents, records, by_fingerprint(part))
        for file in part.files:
            content = found.get(fingerprint(part, file))
            yield content.sha256 if content else file.sha256, file.size, content is not None


def _arrived(layout: Layout, resolved: ResolvedSource, rows: Sequence[Row]) -> dict[int, Arrived]:
    parts_of = arrived(layout)
    found: dict[int, Arrived] = {}
    if not parts_of:
        return found
    packed_of = half_packed(layout, resolved.source)
    for number, (file, (_, size, here)) in enumerate(zip(resolved.files, rows)):
        key = None if here else fingerprint(resolved, file)
        if key in packed_of:
            found[number] = Arrived(size, size)
        elif key in parts_of:
            found[number] = Arrived(*(min(size, count) for count in parts_of[key]))
    return found


def missing(resolved: ResolvedSource, found: Known) -> Iterator[tuple[SourceFile, int]]:
    """The files of a source that are not here, and how many bytes of each have to come."""
    nothing = Arrived(0, 0)
    for number, (file, (_, size, here)) in enumerate(zip(resolved.files, found.files)):
        if not here:
            yield file, size - found.arrived.get(number, nothing).good


def to_come(found: Known, least: int) -> Iterator[tuple[str, int]]:
    """Contents of at least so many bytes that are known and not here, each as often as there are files of it, and how many bytes of each have to come."""
    nothing = Arrived(0, 0)
    for number, (sha256, size, here) in enumerate(found.files if not found.listing else ()):
        if sha256 is not None and size >= least and not here:
            yield sha256, size - found.arrived.get(number, nothing).good


def stored_bytes(mirror: DirectoryMirror) -> int:
    """The bytes of all content in the mirror, whoever wants it, and of what is on its way there."""
    with explained(mirror.root):
        layout = Layout(mirror.root)
        loose = sum(size for _, size in layout.blobs())
        packs = (below.file_size(f"{pack}/data") for pack in layout.pack_places())
        whole = loose + sum(size or 0 for size in packs)
    return whole + unfinished_bytes(mirror)


def unfinished_bytes(mirror: DirectoryMirror) -> int:
    """The bytes of what is on its way there, or was."""
    with explained(mirror.root):
        return sum(bytes_kept(Layout(mirror.root)).values())
