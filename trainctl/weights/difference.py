"""What two versions of a source differ in, for people."""

from __future__ import annotations

from collections.abc import Iterator

from trainctl.model.files import ResolvedSource, SourceFile
from trainctl.weights.safe_path import shown

_SHOWN = 5


def difference(before: ResolvedSource, now: ResolvedSource) -> list[str]:
    """A line for what was added, what was changed and what was removed, with some of the names and how many more."""
    found: dict[str, list[str]] = {"added": [], "changed": [], "removed": []}
    for path, old, new in _pairs(before, now):
        if old is None:
            found["added"].append(path)
        elif new is None:
            found["removed"].append(path)
        elif old != new:
            found["changed"].append(path)
    return [f"{what}: {_some(paths)}" for what, paths in found.items() if paths]


def _pairs(
    before: ResolvedSource, now: ResolvedSource
) -> Iterator[tuple[str, SourceFile | None, SourceFile | None]]:
    old = {file.path: file for file in before.files}
    for file in now.files:
        yield file.path, old.pop(file.path, None), file
    yield from ((path, file, None) for path, file in old.items())


def _some(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    names = ", ".join(shown(path) for path in sorted(paths)[:_SHOWN])
    return f"{names} and {more} more" if more > 0 else names
