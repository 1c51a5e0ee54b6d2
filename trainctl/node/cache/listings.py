"""Listings as a node receives and stores them: checked before any of their names touches the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Iterable, Iterator, List, Optional

from trainctl.base.failure import Failure
from trainctl.base.listing import Listing
from trainctl.base.protocol.wire import received


def given(documents: Iterable[Any], stream: BinaryIO) -> List[Listing]:
    """The listings of a request; the rows of those that are null in it follow it. Failure names what is wrong."""
    try:
        found = list(_parsed(documents, stream))
        for listing in found:
            listing.check()
    except ValueError as error:
        raise Failure("request", f"the listing is invalid: {error}") from None
    return found


def load(path: Path) -> Optional[Listing]:
    """The listing in a file; None if there is no such file, or it holds another document than its name says."""
    try:
        found = Listing.from_bytes(path.read_bytes())
        found.check()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if found.id == path.stem else None


def _parsed(documents: Iterable[Any], stream: BinaryIO) -> Iterator[Listing]:
    lists = received(stream)
    for document in documents:
        if document is not None:
            yield Listing.parse(document)
        else:
            yield Listing.of_rows(next(lists))
