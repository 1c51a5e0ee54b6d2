"""A source's list of files, page by page: it ends, and holds what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from trainctl.base.cursors import Endless, pages
from trainctl.errors import SourceError

C = TypeVar("C")
P = TypeVar("P")


def pages_of(what: str, ask: Callable[[C | None], tuple[P, C | None]]) -> Iterator[P]:
    """See ``pages``. SourceError where they go in a circle."""
    try:
        yield from pages(ask)
    except Endless:
        raise SourceError(
            f"{what}: its server's list has no end: it names pages again, or far too many",
            "A proxy or a cache on the way may leave out what a request asks for.",
        ) from None
