"""What deliveries under way will bring: nobody takes it away meanwhile, and its room is spoken for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from trainctl.base.files import names_in, read_json, unique, write_quickly
from trainctl.base.lock import Lock
from trainctl.base.processes import alive, identity
from trainctl.node.content.listing import Listing
from trainctl.node.content.sizes import sizes_in, text_of
from trainctl.node.system.layout import Layout

_BLOBS = "blobs"
_BEGIN = 4096


def room_lock(layout: Layout) -> Lock:
    """Held by whoever reserves, measures or takes away. Nobody waits for a listing's lock while holding it."""
    return Lock(layout.locks, "room")


@contextlib.contextmanager
def reserved(layout: Layout, listing: Listing) -> Iterator[None]:
    """Reserve a listing's contents, before it is looked at what of them is here."""
    path = layout.reservations / unique(listing.id)[1:]
    with room_lock(layout):
        write_quickly(path, lambda: _text(listing))
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _text(listing: Listing) -> Iterator[str]:
    """What stands in a reservation."""
    size = sum(file.size for file in listing.contents)
    return text_of({"holder": identity(), "bytes": size}, _BLOBS, listing.contents)


def reserved_bytes(layout: Layout) -> int:
    """The bytes of all that is reserved, what several deliveries bring counted for each; nothing that dead processes left."""
    found = 0
    for path in _paths(layout):
        about = _about(path)
        if about is None:
            return sum(size for _, size in reservations(layout))
        found += int(about["bytes"]) if alive(about["holder"]) else 0
    return found


def _about(path: Path) -> Optional[Dict[str, Any]]:
    """What a reservation begins with; None where it is another that would have to be read."""
    try:
        with path.open() as stream:
            begin = stream.read(_BEGIN).partition(f', "{_BLOBS}":')
            found = json.loads(begin[0] + "}") if begin[1] else None
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and "bytes" in found else None


def _paths(layout: Layout) -> Iterator[Path]:
    names = names_in(layout.reservations)
    return (layout.reservations / name for name in names if not name.startswith("."))


def reservations(layout: Layout) -> Iterator[Tuple[str, int]]:
    """Each content that is reserved, and its size; again for each delivery that brings it."""
    for path in living(layout):
        yield from sizes_in(path)


def living(layout: Layout) -> Iterator[Path]:
    """The reservations of deliveries that live, none of which ever changes; what dead processes left is cleared away."""
    for path in _paths(layout):
        about = _about(path) or read_json(path)
        if isinstance(about, dict) and alive(about.get("holder")):
            yield path
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
