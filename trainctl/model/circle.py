"""Ways that lead back to where they began."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def circle(start: T, edges: Mapping[T, Iterable[T]], done: set[T]) -> list[T]:
    """The first way from a place back to a place on it, the same one first and last; empty if there is none.

    ``done`` are places that need no look any more, and learns of more of them.
    """
    way: list[T] = []
    on_way: set[T] = set()
    steps: list[tuple[T, Iterator[T]]] = []

    def enter(place: T) -> None:
        way.append(place)
        on_way.add(place)
        steps.append((place, iter(dict.fromkeys(edges.get(place, ())))))

    if start not in done:
        enter(start)
    while steps:
        place, rest = steps[-1]
        following = next(rest, None)
        if following is None:
            steps.pop()
            done.add(way.pop())
            on_way.discard(place)
        elif following in on_way:
            done |= on_way
            return [*way[way.index(following) :], following]
        elif following not in done:
            enter(following)
    return []
