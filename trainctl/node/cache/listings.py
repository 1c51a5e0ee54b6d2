"""Listings on a node: received with a request, kept as documents, and referred to by lineages, one file each so that nobody shares one."""

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
    """The listings with these ids, whose rows follow a request. Failure if they are invalid, or others."""
    found: List[Listing] = []
    for listing_id, rows in zip(ids, decode_rows(stream)):
        try:
            listing = Listing.of_rows(rows)
            listing.check()
        except ValueError as error:
            raise Failure("request", f"the listing is invalid: {error}") from None
        if listing.id != listing_id:
            raise Failure("request", f"its id is {listing.id} and not {listing_id!r}")
        found.append(listing)
    return found


def load_listing(path: Path) -> Optional[Listing]:
    """The listing in a file; None if there is no such file, or it holds another document than its name says."""
    try:
        found = Listing.from_bytes(path.read_bytes())
        found.check()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if found.id == path.stem else None


class CacheReferences:
    """The references in one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def refer(self, lineage: str, listing: Listing, owner: str) -> None:
        """Record that a lineage needs a listing, before anything of it is inspected; then keep its document.

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
        """Say that a lineage is about to use this node: what it ships is not swept out with another's leavings."""
        path = make_directory(self._layout.references / lineage) / _ARRIVAL_FILE
        if not path.exists():
            write_json(path, {})

    def refer_cache(self, lineage: str, name: str, directory: str) -> None:
        """Say that a lineage needs a training cache, by a name that begins with the cache's."""
        folder = make_directory(self._layout.references / lineage)
        write_json(folder / f"cache-{name}.json", {"directory": directory})

    def drop_cache(self, lineage: str, name: str) -> None:
        """Take back every reference of the lineage whose name begins so."""
        folder = self._layout.references / lineage
        for list_name in list_names(folder):
            if list_name == f"cache-{name}.json" or list_name.startswith(f"cache-{name}-"):
                with contextlib.suppress(FileNotFoundError):
                    (folder / list_name).unlink()

    def drop(self, lineage: str) -> None:
        """Drop all references of a lineage."""
        remove_tree(self._layout.references / lineage)

    def drop_listings(self, lineage: str) -> None:
        """Drop a lineage's references to listings; the others stay."""
        for name in list_names(self._layout.references / lineage):
            if _is_listing(name):
                with contextlib.suppress(FileNotFoundError):
                    (self._layout.references / lineage / name).unlink()

    def lineages(self) -> List[str]:
        """Every lineage that refers to something here."""
        found = list_names(self._layout.references)
        return [name for name in found if list_names(self._layout.references / name)]

    def listings(self) -> Set[str]:
        """The ids of all listings that some lineage refers to."""
        return {
            Path(name).stem
            for lineage in self.lineages()
            for name in list_names(self._layout.references / lineage)
            if _is_listing(name)
        }

    def refers(self, listing_id: str) -> bool:
        """Whether some lineage refers to the listing."""
        return any(map(modified_at, self._to(listing_id)))

    def last_used(self, listing_id: str) -> float:
        """When a lineage last had the listing delivered, in Unix seconds; 0 if none refers to it."""
        return max(map(modified_at, self._to(listing_id)), default=0.0)

    def drop_listing(self, listing_id: str) -> None:
        """Drop every lineage's reference to a listing that was removed, and its document."""
        for path in self._to(listing_id):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        self.drop_document(listing_id)

    def drop_document(self, listing_id: str) -> None:
        """Remove the document of a listing, unless a lineage refers to it: the reference is written first."""
        if not self.refers(listing_id):
            with contextlib.suppress(FileNotFoundError):
                self._layout.listing(listing_id).unlink()

    def _to(self, listing_id: str) -> Iterator[Path]:
        """Where the lineages would refer to a listing. Unlike a glob it doesn't pass over what may not be read."""
        names = list_names(self._layout.references)
        return (self._layout.references / name / f"{listing_id}.json" for name in names)

    def cache_users(self, name: str) -> List[str]:
        """Who refers to a training cache: ``LINEAGE+OWNER``."""
        begin, end = f"cache-{name}-", ".json"
        return [
            f"{lineage}+{list_name[len(begin) : -len(end)]}"
            for lineage in self.lineages()
            for list_name in list_names(self._layout.references / lineage)
            if list_name.startswith(begin) and list_name.endswith(end)
        ]


def _is_listing(name: str) -> bool:
    return not name.startswith((".", "cache-")) and name != _ARRIVAL_FILE
