"""The line that a diagnostic is about, with a caret below its place."""

from __future__ import annotations

from trainctl.manifest import excerpt as manifest
from trainctl.model.diagnostics import Position
from trainctl.views.escape import escape
from trainctl.views.text import columns

WIDTH = 80
"""Columns that a line takes at most where nobody says how many there are."""
_NARROWEST = 20
_TAB = "    "


def excerpt_lines(where: Position | None, width: int = WIDTH) -> list[str]:
    """The line with its number and the line with the caret; nothing where there is no line that may be shown.

    Long lines are cut to what stands around the place.
    """
    found = manifest.excerpt(where) if where else None
    if found is None or where is None:
        return []
    line, column = found
    number = str(where.line)
    text, caret = _window(
        _shown(line[:column]),
        _shown(line[column:].rstrip()),
        max(width - len(number) - 5, _NARROWEST),
    )
    return [f"  {number} | {text}", f"  {' ' * len(number)} | {' ' * caret}^"]


def _shown(text: str) -> str:
    return escape(text.replace("\t", _TAB))


def _window(before: str, after: str, width: int) -> tuple[str, int]:
    """Both parts in so many columns, the end of the first kept, and how many columns it takes."""
    if columns(before) + columns(after) > width:
        before = _last(before, max(width // 2, width - columns(after)))
        after = _first(after, width - columns(before))
    return before + after, columns(before)


def _first(text: str, width: int) -> str:
    return text if columns(text) <= width else _cut(text, width) + "…"


def _last(text: str, width: int) -> str:
    return text if columns(text) <= width else "…" + _cut(text[::-1], width)[::-1]


def _cut(text: str, width: int) -> str:
    """The beginning of a text in fewer columns than that."""
    text = text[:width]
    while columns(text) >= width:
        text = text[:-1]
    return text
