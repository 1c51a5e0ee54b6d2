"""What a mirror can tell of a source before anything moves: each file's content where it is known, and whether it is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional, Sequence, Tuple

from trainctl.model.files import Listing, ResolvedSource, SourceFile, read_files
from trainctl.node.content.packed import packed
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import by_fingerprint, parts, present
from trainctl.weights.mirror.layout import Layout, fingerprint, listing_in
from trainctl.weights.mirror.needs import readable

Row = Tuple[Optional[str], int, bool]


@dataclass(frozen=True)
class Known:
    """Of each file, in the order of paths, ``(sha256, size, here)``, sha256 None where nobody knows it yet; the listing if all are here."""

    files: Sequence[Row]
    listing: str | None

    @property
    def size(self) -> int:
        """All bytes of the source."""
        return sum(size for _, size, _ in self.files)

    @property
    def here(self) -> int:
        """The bytes that are in the mirror."""
        return sum(size for _, size, here in self.files if here)


def known(mirror: DirectoryMirror, resolved: ResolvedSource) -> Known:
    """Look without writing. StorageError where the mirror can't be read."""
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        contents = Contents(layout)
        listed = listed_as(layout, resolved)
        found = _by_listing(contents, listed) if listed else _by_record(contents, resolved)
        rows = packed(found, tuple, lambda *row: row)
        if listed is None and all(here for _, _, here in rows):
            _, listed = mirror.mirrored_bytes(resolved)
    return Known(rows, listed)


def listed_as(layout: Layout, resolved: ResolvedSource) -> str | None:
    """The id of the listing that this very source, as it is now, is known to be, if it is here."""
    for need in readable(layout):
        listing = listing_in(need.record, resolved)
        if listing and layout.listing(listing).is_file():
            return listing
    return None


def kept(mirror: DirectoryMirror, wanted: ResolvedSource) -> Listing | None:
    """The same listing, if all its content is here too."""
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        listed = listed_as(layout, wanted)
        if listed is None or not all(here for _, _, here in _by_listing(Contents(layout), listed)):
            return None
        return layout.load_listing(listed)


def _by_listing(contents: Contents, listing: str) -> Iterator[Row]:
    for file in read_files(contents.layout.listing(listing)):
        yield file.sha256, file.size, contents.has(file.sha256, file.size)


def _by_record(contents: Contents, resolved: ResolvedSource) -> Iterator[Row]:
    for part in parts(resolved):
        found = present(contents, part.source, by_fingerprint(part))
        for file in part.files:
            content = found.get(fingerprint(part, file))
            yield content.sha256 if content else file.sha256, file.size, content is not None


def missing(resolved: ResolvedSource, found: Known) -> Iterator[SourceFile]:
    """The files of a source that are not here."""
    return (file for file, (_, _, here) in zip(resolved.files, found.files) if not here)


def stored_bytes(mirror: DirectoryMirror) -> int:
    """The bytes of all content in the mirror, whoever wants it."""
    with explained(mirror.root):
        blobs = (mirror.root / "blobs").rglob("*")
        loose = sum(path.stat().st_size for path in blobs if path.is_file())
        packs = Layout(mirror.root).packs.glob("*/data")
        return loose + sum(path.stat().st_size for path in packs)
