"""Listings as a node receives and stores them: checked before any of their names touches the disk."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Iterable, List, Optional

from trainctl.base.failure import Failure
from trainctl.base.listing import Listing
from trainctl.base.protocol.wire import received


def receive(ids: Iterable[str], stream: BinaryIO) -> List[Listing]:
    """The listings with these ids, whose rows follow a request. Failure if they are invalid, or others."""
    found: List[Listing] = []
    for listing_id, rows in zip(ids, received(stream)):
        try:
            listing = Listing.of_rows(rows)
            listing.check()
        except ValueError as error:
            raise Failure("request", f"the listing is invalid: {error}") from None
        if listing.id != listing_id:
            raise Failure("request", f"its id is {listing.id} and not {listing_id!r}")
        found.append(listing)
    return found


def load(path: Path) -> Optional[Listing]:
    """The listing in a file; None if there is no such file, or it holds another document than its name says."""
    try:
        found = Listing.from_bytes(path.read_bytes())
        found.check()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if found.id == path.stem else None
