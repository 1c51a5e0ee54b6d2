"""Paginated lists of servers, protected against endless ones."""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Set, Tuple, TypeVar

C = TypeVar("C")
P = TypeVar("P")
MAX_PAGES = 100_000
"""100 million names at 1,000 a page."""


def pages(
    request: Callable[[Optional[C]], Tuple[P, Optional[C]]], endless: Exception
) -> Iterator[P]:
    """Yield every page of a list; raise ``endless`` if it repeats a cursor or has too many pages.

    ``request`` takes a cursor, None for the first page, and returns a page and the next cursor, if any.
    """
    cursors: Set[str] = set()
    page, cursor = request(None)
    yield page
    while cursor is not None:
        if str(cursor) in cursors or len(cursors) == MAX_PAGES:
            raise endless
        cursors.add(str(cursor))
        page, cursor = request(cursor)
        yield page
