"""Listings on a node: documents, and references of lineages in a file each."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Iterable, Iterator, List, Optional, Set

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    modified_at,
    remove_tree,
    write_atomic,
    write_json,
)
from trainctl.base.listing import Listing
from trainctl.base.protocol.wire import decode_rows
from trainctl.node.system.layout import Layout

_ARRIVAL_FILE = "here.json"


def receive_listings(ids: Iterable[str], stream: BinaryIO) -> List[Listing]:
    """Read the rows of these listings, which follow a request; Failure if invalid."""
    listings: List[Listing] = []
    for listing_id, rows in zip(ids, decode_rows(stream)):
        try:
            listing = Listing.of_rows(rows)
            listing.check()
        except ValueError as error:
            raise Failure("request", f"invalid listing: {error}") from None
        if listing.id != listing_id:
            raise Failure("request", f"the listing's id is {listing.id}, expected {listing_id!r}")
        listings.append(listing)
    return listings


def load_listing(path: Path) -> Optional[Listing]:
    """Read a listing's document; None if it is missing, corrupt or not the named one."""
    try:
        listing = Listing.from_bytes(path.read_bytes())
        listing.check()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return listing if listing.id == path.stem else None


class CacheReferences:
    """References of lineages to the listings and training caches of one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def refer(self, lineage: str, listing: Listing, owner: str) -> None:
        """Record a lineage's need of a listing before inspecting it; store its document.

        The reference's mtime is the last use.
        """
        directory = make_directory(self._layout.references / lineage)
        path = directory / f"{listing.id}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            write_json(path, {"owner": owner})
        document = self._layout.listing(listing.id)
        if not document.exists():
            write_atomic(make_directory(document.parent) / document.name, listing.iter_bytes())

    def announce(self, lineage: str) -> None:
        """Protect a lineage's uploaded files before its first delivery."""
        path = make_directory(self._layout.references / lineage) / _ARRIVAL_FILE
        if not path.exists():
            write_json(path, {})

    def refer_cache(self, lineage: str, name: str, directory: str) -> None:
        """Record that a lineage needs a training cache."""
        folder = make_directory(self._layout.references / lineage)
        write_json(folder / f"cache-{name}.json", {"directory": directory})

    def drop_cache(self, lineage: str, name: str) -> None:
        """Drop a lineage's references to the training cache ``name``."""
        folder = self._layout.references / lineage
        for list_name in list_names(folder):
            if list_name == f"cache-{name}.json" or list_name.startswith(f"cache-{name}-"):
                with contextlib.suppress(FileNotFoundError):
                    (folder / list_name).unlink()

    def drop(self, lineage: str) -> None:
        """Drop all references of a lineage, to listings and training caches."""
        remove_tree(self._layout.references / lineage)

    def drop_listings(self, lineage: str) -> None:
        """Drop a lineage's references to listings; the others stay."""
        for name in list_names(self._layout.references / lineage):
            if _is_listing(name):
                with contextlib.suppress(FileNotFoundError):
                    (self._layout.references / lineage / name).unlink()

    def lineages(self) -> List[str]:
        """Lineages with at least one reference."""
        names = list_names(self._layout.references)
        return [name for name in names if list_names(self._layout.references / name)]

    def listings(self) -> Set[str]:
        """Ids of all referenced listings."""
        return {
            Path(name).stem
            for lineage in self.lineages()
            for name in list_names(self._layout.references / lineage)
            if _is_listing(name)
        }

    def refers(self, listing_id: str) -> bool:
        """Check whether any lineage refers to the listing."""
        return any(map(modified_at, self._to(listing_id)))

    def last_used(self, listing_id: str) -> float:
        """Time of the listing's last delivery in Unix seconds; 0 if unreferenced."""
        return max(map(modified_at, self._to(listing_id)), default=0.0)

    def drop_listing(self, listing_id: str) -> None:
        """Drop all references to a removed listing, and its document."""
        for path in self._to(listing_id):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        self.drop_document(listing_id)

    def drop_document(self, listing_id: str) -> None:
        """Remove the document of an unreferenced listing."""
        if not self.refers(listing_id):
            with contextlib.suppress(FileNotFoundError):
                self._layout.listing(listing_id).unlink()

    def _to(self, listing_id: str) -> Iterator[Path]:
        """Paths of possible references. Unlike a glob, fails on unreadable directories."""
        names = list_names(self._layout.references)
        return (self._layout.references / name / f"{listing_id}.json" for name in names)

    def cache_users(self, name: str) -> List[str]:
        """References to a training cache, as ``LINEAGE+OWNER``."""
        begin, end = f"cache-{name}-", ".json"
        return [
            f"{lineage}+{list_name[len(begin) : -len(end)]}"
            for lineage in self.lineages()
            for list_name in list_names(self._layout.references / lineage)
            if list_name.startswith(begin) and list_name.endswith(end)
        ]


def _is_listing(name: str) -> bool:
    return not name.startswith((".", "cache-")) and name != _ARRIVAL_FILE
