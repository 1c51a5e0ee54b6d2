"""Listings that running deliveries are fetching: nothing evicts their blobs, and their disk space is spoken for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Dict, Iterator, Set

from trainctl.base.files import names_in, read_json, unique, write_volatile
from trainctl.base.lease import FileLease
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.processes import alive, identity
from trainctl.node.cache.listings import load
from trainctl.node.system.layout import Layout


def room_lock(layout: Layout) -> FileLease:
    """Held while a process reserves, measures or removes. A holder never waits for a listing's lock."""
    return FileLease(layout.locks / "room.lock")


@contextlib.contextmanager
def reserved(layout: Layout, listing: Listing) -> Iterator[None]:
    """Reserve a listing's contents, before the cache is searched for them."""
    path = layout.reservations / unique(listing.id)[1:]
    size = sum(file.size for file in listing.contents)
    with room_lock(layout):
        write_volatile(path, {"holder": identity(), "bytes": size, "listing": listing.id})
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def reserved_bytes(layout: Layout) -> int:
    """The sum of all reservations; content that several deliveries fetch counts for each."""
    return sum(_reservations(layout).values())


def reserved_listings(layout: Layout) -> Set[str]:
    """The ids of the listings that are reserved."""
    return {path.name.partition(".")[0] for path in _reservations(layout)}


def reservations(layout: Layout) -> Iterator[ListedFile]:
    """The contents that are reserved; one that several listings name several times."""
    for listing_id in reserved_listings(layout):
        listing = load(layout.listing(listing_id))
        if listing is not None:
            yield from listing.contents


def _reservations(layout: Layout) -> Dict[Path, int]:
    """The reservations of live deliveries, with their bytes; those of dead processes are removed."""
    found = {}
    names = names_in(layout.reservations)
    for path in (layout.reservations / name for name in names if not name.startswith(".")):
        about = read_json(path)
        if isinstance(about, dict) and alive(about.get("holder")):
            found[path] = int(about["bytes"])
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return found
