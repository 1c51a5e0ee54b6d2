"""Paginated lists of servers, protected against endless ones."""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Set, Tuple, TypeVar

C = TypeVar("C")
P = TypeVar("P")
MAX_PAGES = 100_000
"""100 million names at 1,000 a page."""


class PaginationCycle(Exception):
    """A list repeats a cursor or has more than ``MAX_PAGES`` pages."""


class CursorCycleDetector:
    """Cursors of one list so far."""

    def __init__(self) -> None:
        self._cursors: Set[str] = set()

    def record(self, cursor: object) -> None:
        """Record the cursor of the next page; PaginationCycle if it repeats."""
        text = str(cursor)
        if text in self._cursors or len(self._cursors) == MAX_PAGES:
            raise PaginationCycle
        self._cursors.add(text)


def pages(request: Callable[[Optional[C]], Tuple[P, Optional[C]]]) -> Iterator[P]:
    """Yield every page of a list; PaginationCycle if it is endless.

    ``request`` takes a cursor, None for the first page, and returns a page and the next cursor, if any.
    """
    cursors = CursorCycleDetector()
    page, cursor = request(None)
    yield page
    while cursor is not None:
        cursors.record(cursor)
        page, cursor = request(cursor)
        yield page
