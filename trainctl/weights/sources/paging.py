"""A source's list of files, page by page: it ends, and holds what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from trainctl.base.cursors import Endless, pages
from trainctl.base.safe_path import shown
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


class Unasked(SourceError):
    """A server lists what it wasn't asked for."""


def below(prefix: str, key: str, uri: str) -> str:
    """An object's path below the prefix that was asked for: by that name it will be asked for again. Unasked where it lies elsewhere."""
    if not key.startswith(prefix):
        raise Unasked(
            f"{uri}: its server lists '{shown(key)}', which doesn't begin with '{shown(prefix)}' as was asked for",
            "It may not be the server that this source is on, or a proxy on the way drops a part of what is asked.",
        )
    return key[len(prefix) :]
