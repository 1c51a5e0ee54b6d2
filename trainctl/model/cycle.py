"""Ways that lead back to where they began."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def find_cycle(edges: Mapping[T, Iterable[T]]) -> list[T]:
    """A way that leads back to where it began, the same place first and last; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        way: list[T] = error.args[1][:0:-1]
        at = next(at for at, place in enumerate(edges) if place in way)
        first = way.index(list(edges)[at])
        return [*way[first:], *way[: first + 1]]
    return []
