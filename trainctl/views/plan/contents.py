"""Format what changes inside of weights, code, images and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainctl.base.units import format_bytes
from trainctl.model.contents import ContentChange, ContentDiff
from trainctl.views.terminal.text import escape

_MOST_SHOWN = 12
"""Changes to show of each group; the JSON form has more."""
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def content_lines(contents: Iterable[ContentDiff]) -> list[str]:
    """Return the changes of all resources: a heading and groups for each."""
    return [escape(line) for diff in contents for line in _diff_lines(diff)]


def _diff_lines(diff: ContentDiff) -> Iterator[str]:
    if diff.kind == "checkpoints":
        yield f"  {diff.address} loads checkpoints of {diff.after}"
        return
    what = "" if diff.kind == "weights" else f" {diff.kind}"
    versions = (text.rpartition(":")[2][:12] for text in (diff.before, diff.after))
    yield f"  {diff.address}{what}: {' -> '.join(versions)}"
    for group in diff.groups:
        counts = (f"{count} {name}" for name, count in sorted(group.counts.items()))
        yield f"    {group.title}: {', '.join(counts)}"
        shown = group.changes[:_MOST_SHOWN]
        yield from (f"      {_row(diff, group.title, row)}" for row in shown)
        if more := sum(group.counts.values()) - sum(row.count for row in shown):
            yield f"      and {more} more"
    yield from (f"    not known: {note}" for note in diff.notes)


def _row(diff: ContentDiff, title: str, row: ContentChange) -> str:
    values = [value for value in (row.before, row.after) if value is not None]
    texts = [format_bytes(value) if isinstance(value, int) else value for value in values]
    text = " -> ".join(dict.fromkeys(texts))
    if title == "commits":
        return f"{text[:12]} {row.name}"
    if diff.kind == "code":
        signs = zip("+-", (row.after, row.before), strict=True)
        text = " ".join(f"{sign}{count}" for sign, count in signs if count is not None)
    return f"{_SIGNS[row.how]} {row.name}{f' ({row.count})' if row.count > 1 else ''}: {text}"
