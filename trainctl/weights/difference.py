"""What two versions of a source differ in, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import SourceFile

_SHOWN = 5


def describe_difference(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> list[str]:
    """A line for what was added, what was changed and what was removed, with some of the names and how many more.

    Both are sorted by path, and may be millions: neither is ever held.
    """
    names: dict[str, list[str]] = {"added": [], "changed": [], "removed": []}
    counts = dict.fromkeys(names, 0)
    for what, path in _changes(before, now):
        counts[what] += 1
        if len(names[what]) < _SHOWN:
            names[what].append(display_path(path))
    return [
        f"{what}: {', '.join(names[what])}"
        + (f" and {more} more" if (more := count - _SHOWN) > 0 else "")
        for what, count in counts.items()
        if count
    ]


def _changes(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> Iterator[tuple[str, str]]:
    """What happened to which path, by path."""
    both = merge(
        ((one, 0) for one in before), ((one, 1) for one in now), key=lambda row: row[0].path
    )
    for path, rows in groupby(both, key=lambda row: row[0].path):
        files = list(rows)
        if len(files) == 2:
            if files[0][0] != files[1][0]:
                yield "changed", path
        else:
            yield ("added" if files[0][1] else "removed"), path
