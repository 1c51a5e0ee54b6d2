"""The little that all text views share: styles, widths, tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from trainctl.views.escape import escape

Style = Callable[[str, str], str]
"""Paints a text in a style: ``bold``, ``dim``, ``red``, ``green``, ``yellow``, ``cyan``. ``Output.style`` is one."""

_NARROWEST = 10
_PAINT = re.compile(r"\x1b\[\d{1,2}m")


def plain(text: str, style: str) -> str:
    """No style: for pipes, files and whoever wants no colour."""
    del style
    return text


def columns(text: str) -> int:
    """How many terminal columns a line takes."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


def shorten(text: str, most: int) -> str:
    """The text in at most so many columns, with an ellipsis where its middle was."""
    if columns(text) <= most:
        return text
    head = text
    while columns(head) > (most - 1 + 1) // 2:
        head = head[:-1]
    tail = text[len(head) :]
    while tail and columns(tail) > most - 1 - columns(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled with spaces to a width; ``right`` puts it at the right end."""
    space = " " * max(width - columns(text), 0)
    return space + text if right else text + space


def wrap(line: str, width: int) -> list[str]:
    """The line in lines of so many columns, broken between words; a word that is longer stays whole.

    Sentences go on where they began. What begins at the margin or with a sign, as headings and rows do, goes on further in.
    """
    unpainted = _PAINT.sub("", line)
    if columns(unpainted) <= width:
        return [line]
    text = unpainted.lstrip(" ")
    begins = " " * (len(unpainted) - len(text))
    goes_on = begins if begins and text[0].isalnum() else begins + "  "
    first, *words = line.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if columns(_PAINT.sub("", longer)) <= width:
            lines[-1] = longer
        else:
            lines.append(goes_on + word)
    return lines


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None = None,
    shrinks: frozenset[str] | None = None,
    narrowest: Mapping[str, int] | None = None,
    drops: Sequence[str] = (),
    style: Style = plain,
    indent: str = "",
    paint: Callable[[int, str, str], str] | None = None,
) -> list[str]:
    """Aligned columns under dim headers, a line for each row whatever its cells hold; a column that says nothing is left out. ``right`` names those of numbers.

    Cells shrink only where ``width`` says so, only those of the columns ``shrinks``, if it names any, and no further than to
    ``narrowest`` of theirs; where that is not enough, those of ``drops`` go, in that order, and if that isn't either, none goes or shrinks.
    ``paint`` is given a row's number, a header and the cell's text, and gives that text in a style.
    """
    said = [i for i in range(len(headers)) if not rows or any(row[i] for row in rows)]
    lines = [[escape(line[i]) for i in said] for line in (headers, *rows)]
    widths = _widths(lines)
    if width is not None:
        lines, least = _dropped(lines, drops, shrinks, narrowest or {}, width - len(indent))
        widths = _shrunk(_widths(lines), least, width - len(indent) - _gaps(lines))
    headers = lines[0]

    def shown(number: int, cell: str, size: int, header: str) -> str:
        text = shorten(cell, size)
        padded = pad(text, size, right=header in right)
        if paint is None or number == 0 or not text:
            return padded
        return padded.replace(text, paint(number - 1, header, text), 1)

    texts = [
        indent
        + "  ".join(
            shown(number, *each) for each in zip(line, widths, headers, strict=True)
        ).rstrip()
        for number, line in enumerate(lines)
    ]
    return [style(texts[0], "dim"), *texts[1:]]


def _dropped(
    lines: list[list[str]],
    drops: Sequence[str],
    shrinks: frozenset[str] | None,
    narrowest: Mapping[str, int],
    available: int,
) -> tuple[list[list[str]], list[int]]:
    """The lines without the columns that have to go, if that helps, and how narrow each of the others may be."""

    def least(kept: list[list[str]]) -> list[int]:
        return [
            min(size, narrowest.get(header, _NARROWEST))
            if shrinks is None or header in shrinks
            else size
            for size, header in zip(_widths(kept), kept[0], strict=True)
        ]

    kept = lines
    for header in (*(one for one in drops if one in lines[0]), None):
        if sum(least(kept)) + _gaps(kept) <= available:
            return kept, least(kept)
        if header is not None:
            gone = kept[0].index(header)
            kept = [[*line[:gone], *line[gone + 1 :]] for line in kept]
    return lines, least(lines)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(columns, cells)) for cells in zip(*lines, strict=True)]


def _gaps(lines: Sequence[Sequence[str]]) -> int:
    """The columns between the cells of a line."""
    return 2 * (len(lines[0]) - 1)


def _shrunk(widths: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """The widths, with the widest made narrower until all fit; as they are if they can't: a row that is broken anyway loses nothing."""
    widths = list(widths)
    if sum(least) > available:
        return widths
    while sum(widths) > available:
        may = [i for i, size in enumerate(widths) if size > least[i]]
        widths[max(may, key=widths.__getitem__)] -= 1
    return widths


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def warned(text: str, *, code: str) -> str:
    """A warning that stands beside an answer."""
    return f"Warning: {text} [{code}]"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``2 files``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def moment(seconds: float | None) -> str | None:
    """A time as RFC 3339 in UTC; None for one that no calendar has, which a wrong clock may have given a file."""
    if seconds is None:
        return None
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def minute(seconds: float | None) -> str:
    """A time in tables, in UTC: ``2026-01-31 12:00``; empty where there is none."""
    return (moment(seconds) or "")[:16].replace("T", " ")
