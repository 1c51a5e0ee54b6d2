"""What deliveries under way will bring: nobody takes it away meanwhile, and its room is spoken for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Dict, Iterator

from trainctl.node.content.listing import Listing
from trainctl.node.system.files import names_in, read_json, unique, write_volatile
from trainctl.node.system.layout import Layout
from trainctl.node.system.lock import Lock
from trainctl.node.system.processes import alive, identity


def room_lock(layout: Layout) -> Lock:
    """Held by whoever reserves, measures or takes away. Nobody waits for a listing's lock while holding it."""
    return Lock(layout.locks, "room")


@contextlib.contextmanager
def reserved(layout: Layout, listing: Listing) -> Iterator[None]:
    """Reserve a listing's contents, before it is looked at what of them is here."""
    blobs = {file.sha256: file.size for file in listing.contents.values()}
    path = layout.reservations / unique(listing.id)[1:]
    with room_lock(layout):
        write_volatile(path, {"holder": identity(), "blobs": blobs})
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def reservations(layout: Layout) -> Dict[str, int]:
    """The size of each content that is reserved; what dead processes left is cleared away."""
    found: Dict[str, int] = {}
    for name in names_in(layout.reservations):
        path = layout.reservations / name
        if name.startswith("."):
            continue
        value = read_json(path)
        if isinstance(value, dict) and alive(value.get("holder")):
            found.update(value["blobs"])
        else:
            _clear(path)
    return found


def _clear(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
