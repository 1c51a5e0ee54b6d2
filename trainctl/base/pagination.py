"""Lists that a server tells page by page. One whose pages go in a circle would be followed for ever."""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Set, Tuple, TypeVar

C = TypeVar("C")
P = TypeVar("P")
MAX_PAGES = 100_000
"""A hundred million names, a thousand on each: who tells more doesn't mean it."""


class PaginationCycle(Exception):
    """A list names a page that it has named before, or too many of them."""


class CursorCycleDetector:
    """What one list has named so far."""

    def __init__(self) -> None:
        self._named: Set[str] = set()

    def named(self, cursor: object) -> None:
        """The next page is named so. Endless where there is none."""
        name = str(cursor)
        if name in self._named or len(self._named) == MAX_PAGES:
            raise PaginationCycle
        self._named.add(name)


def pages(ask: Callable[[Optional[C]], Tuple[P, Optional[C]]]) -> Iterator[P]:
    """Every page of a list; ``ask`` gives the first, or the one of that name, and names the next, if there is one. Endless where they don't end."""
    cursors = CursorCycleDetector()
    page, following = ask(None)
    yield page
    while following is not None:
        cursors.named(following)
        page, following = ask(following)
        yield page
